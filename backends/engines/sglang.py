"""``Engine`` over SGLang's own HTTP API. Written from its sources and documents; no real SGLang was run.

One instance is one server, or one pair of a prefill and a decode server (``--disaggregation-mode``) that move the KV
between them by themselves: each leg goes to both at once, under a number that neither had before. A pair is one
instance to the gateway, which then neither sees nor moves the KV inside it.
"""

import asyncio
import contextlib
import secrets
from typing import Any
from urllib.parse import urlsplit

import msgspec

from backends.base import Room, Take
from backends.engines.dialect import read_samples
from backends.engines.http_engine import check_stream, get, post_leg, stream_leg
from backends.engines.sglang_wire import GENERATE_PATH, NO_IDS, GenerateDecoder, encode_leg, parse_event, raise_abort
from backends.errors import EngineBroken, EngineRejected, IdsMissing
from backends.transport.client import HttpOrigin
from backends.transport.sse import EventTooLarge, SseParser
from backends.types import Capabilities, EngineLoad, LegChunk, LegRequest, Sampling

BOOTSTRAP_PORT = 8998
"""SGLang's default of ``--disaggregation-bootstrap-port``."""
MOST_ROOM = (1 << 63) - 1
PROBE_PROMPT = (1, 2, 3)


class PrefillOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The prefill server of a pair: its URL, and where decode servers find it (default: the URL's host, port 8998)."""

    url: str
    bootstrap_host: str | None = None
    bootstrap_port: int = BOOTSTRAP_PORT


class SglangOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``engines[].options`` of an SGLang instance. With ``prefill`` it is a pair; its URL is the decode server's."""

    prefill: PrefillOptions | None = None


class _Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


class _ServerInfo(msgspec.Struct):
    page_size: int | None = None
    disaggregation_mode: str | None = None


class SglangEngine:
    """One instance at ``url``, its API's root. ``api_key`` is the engine's own, never a client's."""

    def __init__(
        self,
        id: str,
        url: str,
        *,
        api_key: str | None = None,
        options: SglangOptions | None = None,
        control_timeout_s: float = 5.0,
    ) -> None:
        """Raises ValueError for a URL that is none."""
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        prefill = options.prefill if options else None
        self._id = id
        self._origin = HttpOrigin(url, headers=headers)
        self._prefill_origin = HttpOrigin(prefill.url, headers=headers) if prefill else None
        self._bootstrap: dict[str, Any] = {}
        if prefill:
            host = prefill.bootstrap_host or urlsplit(prefill.url).hostname
            self._bootstrap = {"bootstrap_host": host, "bootstrap_port": prefill.bootstrap_port}
        self._control_timeout_s = control_timeout_s
        self._loses_ids = False

    @property
    def id(self) -> str:
        """Name of the instance."""
        return self._id

    async def generate(self, leg: LegRequest, take: Take) -> None:
        """Run one leg, see ``Engine.generate``."""
        if self._prefill_origin is not None:
            await self._generate_by_pair(leg, self._prefill_origin, take)
        else:
            await self._stream(leg, encode_leg(leg), take)

    async def probe(self) -> Capabilities:
        """Ask for models and the server's arguments, and for one token: its id must be streamed, see ``Engine.probe``.

        Raises EngineBroken that says what is missing.
        """
        await self._get("/health")
        try:
            models = msgspec.json.decode(await self._get("/v1/models"), type=_Models).data
            info = msgspec.json.decode(await self._get("/get_server_info"), type=_ServerInfo)
        except (msgspec.DecodeError, RecursionError):
            raise EngineBroken("/v1/models and /get_server_info are not SGLang's") from None
        mode = info.disaggregation_mode or "null"
        expected = "decode" if self._prefill_origin is not None else "null"
        if mode != expected:
            raise EngineBroken(f"the server runs with --disaggregation-mode {mode}, and not {expected}")
        if self._prefill_origin is not None:
            await get(self._prefill_origin, "/health", self._control_timeout_s)
        await self._check_ids([model.id for model in models])
        lengths = [model.max_model_len for model in models if model.max_model_len is not None]
        return Capabilities(
            models=tuple(model.id for model in models),
            max_model_len=min(lengths, default=None),
            block_size_tokens=info.page_size,
            streams_token_ids=not self._loses_ids,
            boot_id=await self._read_boot_id(),
        )

    async def load(self) -> EngineLoad:
        """Read the load from ``/metrics``; data-parallel ranks add up, the fullest tells the KV use."""
        metrics = (await self._get("/metrics")).decode(errors="replace")
        running = read_samples(metrics, "sglang:num_running_reqs")
        waiting = read_samples(metrics, "sglang:num_queue_reqs")
        usage = read_samples(metrics, "sglang:token_usage")
        if not (running and waiting and usage):
            raise EngineBroken("/metrics does not tell the load: SGLang must be started with --enable-metrics")
        kv_usage = min(1.0, max(0.0, *usage))
        return EngineLoad(int(sum(running)), int(sum(waiting)), kv_usage, _boot_id(metrics))

    async def aclose(self) -> None:
        """Close pooled connections."""
        await self._origin.aclose()
        if self._prefill_origin is not None:
            await self._prefill_origin.aclose()

    async def _stream(self, leg: LegRequest, body: bytes, take: Take) -> None:
        await stream_leg(self._origin, GENERATE_PATH, body, leg, GenerateDecoder(leg), take, self._note_loss)

    async def _generate_by_pair(self, leg: LegRequest, prefill_origin: HttpOrigin, take: Take) -> None:
        """Send the leg to both servers. A prefill that fails before the first token is the leg's failure.

        The decode server would wait for its KV in vain.
        """
        body = encode_leg(leg, self._bootstrap | {"bootstrap_room": secrets.randbelow(MOST_ROOM)})
        begun = asyncio.Event()

        def take_first(chunk: LegChunk) -> Room | None:
            begun.set()
            return take(chunk)

        prefilling = asyncio.create_task(_prefill(prefill_origin, leg, body))
        streaming = asyncio.create_task(self._stream(leg, body, take_first))
        begins = asyncio.create_task(begun.wait())
        try:
            await asyncio.wait({prefilling, streaming, begins}, return_when=asyncio.FIRST_COMPLETED)
            if not (begun.is_set() or streaming.done()):
                await prefilling
            await streaming
        finally:
            for task in (prefilling, streaming, begins):
                task.cancel()
            await asyncio.gather(prefilling, streaming, begins, return_exceptions=True)

    async def _check_ids(self, models: list[str]) -> None:
        """Ask for one token."""
        asked = LegRequest(
            request_id=f"probe-{secrets.token_hex(8)}",
            model=models[0] if models else "",
            prompt=PROBE_PROMPT,
            max_tokens=1,
            sampling=Sampling(temperature=0.0, ignore_eos=True),
            first_token_timeout_s=self._control_timeout_s,
        )
        try:
            await self.generate(asked, lambda chunk: None)
        except IdsMissing:
            raise EngineBroken(NO_IDS) from None
        except EngineRejected as error:
            raise EngineBroken(f"/generate does not take a prompt of token ids: it answered {error.status}") from None
        self._loses_ids = False

    def _note_loss(self) -> None:
        self._loses_ids = True

    async def _read_boot_id(self) -> str | None:
        with contextlib.suppress(EngineBroken):
            return _boot_id((await self._get("/metrics")).decode(errors="replace"))
        return None

    async def _get(self, path: str) -> bytes:
        return await get(self._origin, path, self._control_timeout_s)


async def _prefill(origin: HttpOrigin, leg: LegRequest, body: bytes) -> None:
    """Let the prefill server compute the prompt's KV; its own answer is of no use. Raises BackendError."""
    response = await post_leg(origin, GENERATE_PATH, body, leg)
    try:
        await check_stream(response)
        parser = SseParser()
        while data := await response.read():
            for event in parser.feed(data):
                if event != b"[DONE]":
                    meta = parse_event(event, is_first=True).meta_info
                    raise_abort((meta and meta.finish_reason) or {}, is_first=True)
        response.finish()
    except EventTooLarge as error:
        raise EngineBroken(str(error)) from None
    finally:
        await response.aclose()


def _boot_id(metrics: str) -> str | None:
    starts = read_samples(metrics, "process_start_time_seconds")
    return str(starts[0]) if starts else None
