"""``Engine`` over the HTTP API of vLLM, and of engines that speak its dialect."""

import contextlib
import ssl
from collections.abc import AsyncGenerator

import msgspec

from backends.completions import CompletionDecoder, encode_leg
from backends.errors import EngineBroken
from backends.exchange import get, stream_leg
from backends.metrics import find_label, read_samples
from backends.stream import Origin
from backends.types import Capabilities, EngineLoad, LegChunk, LegRequest


class _Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


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
        self._origin = Origin(url, headers=headers, connect_timeout_s=connect_timeout_s, ssl_context=ssl_context)
        self._control_timeout_s = control_timeout_s
        self._boot_id: str | None = None
        self._loses_ids = False

    @property
    def id(self) -> str:
        """Name of the instance."""
        return self._id

    def generate(self, leg: LegRequest) -> AsyncGenerator[LegChunk, None]:
        """Stream one leg, see ``Engine.generate``."""
        decoder = CompletionDecoder(leg.sampling.logprobs)
        return stream_leg(self._origin, "/v1/completions", encode_leg(leg), leg, decoder, self._note_loss)

    async def probe(self) -> Capabilities:
        """Ask for models, health and metrics, see ``Engine.probe``.

        An engine streams token ids until one of its legs showed that it loses some; a restart clears that.
        """
        await self._get("/health")
        try:
            models = msgspec.json.decode(await self._get("/v1/models"), type=_Models).data
        except msgspec.DecodeError:
            raise EngineBroken("/v1/models does not list models") from None
        metrics = ""
        with contextlib.suppress(EngineBroken):
            metrics = (await self._get("/metrics")).decode(errors="replace")
        lengths = [model.max_model_len for model in models if model.max_model_len is not None]
        block_size = find_label(metrics, "vllm:cache_config_info", "block_size")
        boot_id = _read_boot_id(metrics)
        if boot_id != self._boot_id:
            self._boot_id, self._loses_ids = boot_id, False
        return Capabilities(
            models=tuple(model.id for model in models),
            max_model_len=min(lengths, default=None),
            block_size_tokens=int(block_size) if block_size and block_size.isdecimal() else None,
            streams_token_ids=not self._loses_ids,
            boot_id=boot_id,
        )

    async def load(self) -> EngineLoad:
        """Read the load from ``/metrics``; several data-parallel ranks add up, the fullest tells the KV use."""
        metrics = (await self._get("/metrics")).decode(errors="replace")
        running = read_samples(metrics, "vllm:num_requests_running")
        waiting = read_samples(metrics, "vllm:num_requests_waiting")
        usage = read_samples(metrics, "vllm:kv_cache_usage_perc")
        if not (running and waiting and usage):
            raise EngineBroken("/metrics does not tell the load")
        return EngineLoad(int(sum(running)), int(sum(waiting)), max(usage), _read_boot_id(metrics))

    async def aclose(self) -> None:
        """Close pooled connections."""
        await self._origin.aclose()

    def _note_loss(self) -> None:
        self._loses_ids = True

    async def _get(self, path: str) -> bytes:
        return await get(self._origin, path, self._control_timeout_s)


def _read_boot_id(metrics: str) -> str | None:
    starts = read_samples(metrics, "process_start_time_seconds")
    return str(starts[0]) if starts else None
