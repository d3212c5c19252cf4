"""``Engine`` over the HTTP API of vLLM, and of engines that speak its dialect."""

import asyncio
import contextlib
import email.utils
import ssl
import time
from collections.abc import AsyncGenerator

import msgspec

from backends.completions import CompletionDecoder, encode_leg, refusal
from backends.errors import EngineBroken, EngineTimeout, EngineUnavailable, IdsMissing
from backends.metrics import find_label, read_samples
from backends.sse import EventTooLarge, SseParser
from backends.stream import Origin, Response
from backends.types import Capabilities, EngineLoad, LegChunk, LegRequest

MAX_REFUSAL_BYTES = 1024 * 1024
MAX_RETRY_AFTER_S = 3600.0


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

    async def generate(self, leg: LegRequest) -> AsyncGenerator[LegChunk, None]:
        """Stream one leg, see ``Engine.generate``."""
        response = await self._origin.send(
            "POST",
            "/v1/completions",
            encode_leg(leg),
            headers={"Content-Type": "application/json", "X-Request-Id": leg.request_id},
            head_timeout_s=leg.first_token_timeout_s,
        )
        try:
            await _check_stream(response)
            now_s = asyncio.get_running_loop().time
            parser, decoder = SseParser(), CompletionDecoder(leg.sampling.logprobs)
            while not decoder.is_done:
                data = await response.read()
                if not data:
                    raise EngineBroken("the stream ended without [DONE]")
                for event in parser.feed(data):
                    chunk = decoder.feed(event)
                    if chunk:
                        yield chunk
                        if chunk.token_ids:
                            response.set_deadline(now_s() + leg.idle_timeout_s)
            response.finish()
        except IdsMissing:
            self._loses_ids = True
            raise
        except EventTooLarge as error:
            raise EngineBroken(str(error)) from None
        finally:
            await response.aclose()

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

    async def _get(self, path: str) -> bytes:
        """Body of a 200. Raises EngineUnavailable, or EngineBroken for an answer that will not get better."""
        try:
            response = await self._origin.send("GET", path, head_timeout_s=self._control_timeout_s)
            try:
                body = await response.body()
            finally:
                await response.aclose()
        except EngineTimeout:
            raise EngineUnavailable(f"{path} was not answered in time") from None
        if response.status == 429 or response.status >= 500:
            raise EngineUnavailable(f"{path} answered {response.status}", _retry_after_s(response))
        if response.status != 200:
            raise EngineBroken(f"{path} answered {response.status}")
        return body


def _read_boot_id(metrics: str) -> str | None:
    starts = read_samples(metrics, "process_start_time_seconds")
    return str(starts[0]) if starts else None


async def _check_stream(response: Response) -> None:
    if response.status != 200:
        body = await response.body(MAX_REFUSAL_BYTES)
        raise refusal(response.status, body, _retry_after_s(response))
    if not response.headers.get(b"content-type", b"").lower().startswith(b"text/event-stream"):
        raise EngineBroken("the answer is not an event stream")


def _retry_after_s(response: Response) -> float | None:
    """Retry-After in seconds, given as a number or as a date; None when absent or senseless."""
    value = response.headers.get(b"retry-after", b"").decode("latin-1").strip()
    if value.isascii() and value.isdigit():
        return min(float(value), MAX_RETRY_AFTER_S)
    with contextlib.suppress(ValueError):
        wait_s = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        return min(max(0.0, wait_s), MAX_RETRY_AFTER_S)
    return None
