"""``Engine`` over the HTTP API of vLLM, and of engines that speak its dialect."""

import contextlib
import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from backends.base import Take
from backends.engines.dialect import find_label, read_by_label, read_samples
from backends.engines.http_engine import get, post, stream_leg
from backends.engines.vllm_chat import (
    RENDER_PATH,
    TOKENIZE_PATH,
    decode_ids,
    encode_render,
    encode_text,
    encode_tokenize,
)
from backends.engines.vllm_completions import CompletionDecoder, encode_leg, rank_header
from backends.engines.vllm_generate import GENERATE_PATH, encode_generate, leaves_no_default
from backends.engines.vllm_nixl import lend
from backends.errors import EngineBroken, EngineUnavailable
from backends.transport.client import HttpOrigin
from backends.types import Capabilities, EngineLoad, LegRequest

_RUNNING = "vllm:num_requests_running"
_WAITING = "vllm:num_requests_waiting"


class _Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


class _EventConfig(msgspec.Struct):
    endpoint: str
    enable_kv_cache_events: bool = True
    publisher: str | None = "zmq"
    replay_endpoint: str | None = None


class VllmEngine:
    """One engine at ``url``, its API's root (without ``/v1``). ``api_key`` is the engine's own, never a client's."""

    def __init__(
        self,
        id: str,
        url: str,
        *,
        api_key: str | None = None,
        connect_timeout_s: float = 5.0,
        control_timeout_s: float = 5.0,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._id = id
        self._host = urlsplit(url).hostname or ""
        self._origin = HttpOrigin(url, headers=headers, connect_timeout_s=connect_timeout_s, ssl_context=ssl_context)
        self._control_timeout_s = control_timeout_s
        self._boot_id: str | None = None
        self._loses_ids = False
        self._has_generate = self._generates = False
        self._renders = False

    @property
    def id(self) -> str:
        """Name of the instance."""
        return self._id

    async def generate(self, leg: LegRequest, take: Take) -> None:
        """Run one leg, see ``Engine.generate``. One that lends its KV comes as one chunk, at its end."""
        if leg.lends_kv:
            take(await lend(self._origin, leg))
            return
        if self._has_generate and leg.kv_ticket is None and leaves_no_default(leg.sampling):
            path, body = GENERATE_PATH, encode_generate(leg)
        else:
            path, body = "/v1/completions", encode_leg(leg)
        decoder = CompletionDecoder(leg.sampling.logprobs)
        await stream_leg(self._origin, path, body, leg, decoder, take, self._note_loss, rank_header(leg))

    async def probe(self) -> Capabilities:
        """Ask for models, health, metrics, event sources and the token endpoint, see ``Engine.probe``.

        An engine streams token ids until one of its legs showed that it loses some; a restart clears that.
        """
        await self._get("/health")
        try:
            models = msgspec.json.decode(await self._get("/v1/models"), type=_Models).data
        except (msgspec.DecodeError, RecursionError):
            raise EngineBroken("/v1/models does not list models") from None
        metrics = ""
        with contextlib.suppress(EngineBroken):
            metrics = (await self._get("/metrics")).decode(errors="replace")
        lengths = [model.max_model_len for model in models if model.max_model_len is not None]
        block_size = find_label(metrics, "vllm:cache_config_info", "block_size")
        boot_id = _read_boot_id(metrics)
        if boot_id is None or boot_id != self._boot_id:
            self._generates, self._renders = await self._serves(GENERATE_PATH), await self._serves(RENDER_PATH)
            self._boot_id, self._loses_ids = boot_id, False
        self._has_generate = self._generates and await self._knows(GENERATE_PATH)
        sources = await self._find_event_sources()
        ranks = list(sources) or list(_read_ranks(metrics, _RUNNING))  # one without events has metrics of each rank
        return Capabilities(
            models=tuple(model.id for model in models),
            max_model_len=min(lengths, default=None),
            block_size_tokens=int(block_size) if block_size and block_size.isdecimal() else None,
            streams_token_ids=not self._loses_ids,
            boot_id=boot_id,
            event_sources=tuple(sources.values()),
            data_parallel_size=max(1, len(ranks)),
            first_rank=ranks[0] if ranks else 0,
        )

    async def load(self) -> EngineLoad:
        """Read the load from ``/metrics``; several data-parallel ranks add up, the fullest tells the KV use."""
        metrics = (await self._get("/metrics")).decode(errors="replace")
        running = read_samples(metrics, _RUNNING)
        waiting = read_samples(metrics, _WAITING)
        usage = read_samples(metrics, "vllm:kv_cache_usage_perc")
        if not (running and waiting and usage):
            raise EngineBroken("/metrics does not tell the load")
        by_rank, waiting_by_rank = _read_ranks(metrics, _RUNNING), _read_ranks(metrics, _WAITING)
        requests = tuple(int(count + waiting_by_rank.get(rank, 0)) for rank, count in by_rank.items())
        ranks = requests if len(requests) > 1 else ()
        return EngineLoad(int(sum(running)), int(sum(waiting)), max(usage), _read_boot_id(metrics), ranks)

    async def read_chat(self, model: str, chat: Mapping[str, Any]) -> list[int]:
        """Tell the ids of a chat's prompt, see ``ChatReader``."""
        if self._renders:
            return decode_ids(await self._post(RENDER_PATH, encode_render(model, chat)))
        return decode_ids(await self._post(TOKENIZE_PATH, encode_tokenize(model, chat)))

    async def read_text(self, model: str, text: str, special: bool) -> list[int]:
        """Tell the ids of a text, see ``ChatReader``."""
        return decode_ids(await self._post(TOKENIZE_PATH, encode_text(model, text, special)))

    async def aclose(self) -> None:
        """Close pooled connections."""
        await self._origin.aclose()

    def _note_loss(self) -> None:
        self._loses_ids = True

    async def _knows(self, path: str) -> bool:
        """Say whether there is a POST endpoint: GET is then the wrong method, and elsewhere the wrong path."""
        response = await self._origin.send("GET", path, head_timeout_s=self._control_timeout_s)
        await response.aclose()
        return response.status == 405

    async def _serves(self, path: str) -> bool:
        """Say whether an endpoint can be used: it finds fault with an empty request.

        Without ``--enable-scale-out`` vLLM has these paths, too, and answers 403.
        """
        headers = {"Content-Type": "application/json"}
        response = await self._origin.send("POST", path, b"{}", headers=headers, head_timeout_s=self._control_timeout_s)
        await response.aclose()
        return response.status in (400, 422)

    async def _find_event_sources(self) -> dict[int, tuple[str, str | None]]:
        """Read ``/kv_event_sources`` in the order of ranks, each with its own port.

        An endpoint that is bound to all addresses is at this engine's host.
        """
        try:
            ranks = msgspec.json.decode(await self._get("/kv_event_sources"), type=dict[int, _EventConfig])
        except (EngineBroken, EngineUnavailable, msgspec.DecodeError, RecursionError):
            return {}
        return {
            rank: (self._reachable(found.endpoint), found.replay_endpoint and self._reachable(found.replay_endpoint))
            for rank, found in sorted(ranks.items())
            if found.enable_kv_cache_events and found.publisher == "zmq"
        }

    def _reachable(self, endpoint: str) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        for anywhere in ("*", "0.0.0.0", "[::]", "::"):
            endpoint = endpoint.replace(f"tcp://{anywhere}:", f"tcp://{host}:")
        return endpoint

    async def _post(self, path: str, body: bytes) -> bytes:
        return await post(self._origin, path, body, self._control_timeout_s)

    async def _get(self, path: str) -> bytes:
        return await get(self._origin, path, self._control_timeout_s)


def _read_ranks(metrics: str, name: str) -> dict[int, float]:
    """Values of a metric by data-parallel rank, which vLLM calls ``engine``, in the order of ranks."""
    found = read_by_label(metrics, name, "engine")
    return dict(sorted((int(rank), value) for rank, value in found.items() if rank.isdecimal()))


def _read_boot_id(metrics: str) -> str | None:
    starts = read_samples(metrics, "process_start_time_seconds")
    return str(starts[0]) if starts else None
