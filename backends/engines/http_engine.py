"""What adapters of HTTP engines share: control calls, the judgement of an answer's head, and one streamed leg."""

import asyncio
import contextlib
import email.utils
import time
from collections.abc import Callable, Coroutine, Mapping
from types import MappingProxyType
from typing import Any, Protocol

from backends.base import Room, Take
from backends.engines.dialect import refusal
from backends.errors import EngineBroken, EngineTimeout, EngineUnavailable, IdsMissing
from backends.transport.client import HttpOrigin, Response
from backends.transport.sse import EventTooLarge, SseParser
from backends.types import LegChunk, LegRequest

MAX_REFUSAL_BYTES = 1024 * 1024
MAX_RETRY_AFTER_S = 3600.0
NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class Decoder(Protocol):
    """Turns the events of one leg into chunks."""

    is_done: bool
    """The engine has ended the stream properly."""

    def feed(self, event: bytes) -> LegChunk | None:
        """Return what the event tells, or None. Raises the errors of ``backends.errors``."""
        ...


def post_leg(
    origin: HttpOrigin, path: str, body: bytes, leg: LegRequest, headers: Mapping[str, str] = NO_HEADERS
) -> Coroutine[Any, Any, Response]:
    """Await this to post a leg; it ends with the head of the answer, which the caller closes, or as ``send`` does.

    ``headers``: beside those that every engine gets.
    """
    return origin.send(
        "POST",
        path,
        body,
        headers={"Content-Type": "application/json", "X-Request-Id": leg.request_id, **leg.trace_headers, **headers},
        head_timeout_s=leg.first_token_timeout_s,
    )


class LegPump:
    """Takes the bytes of one leg, in the turn of the loop in which they come, to whoever reads it."""

    def __init__(self, response: Response, leg: LegRequest, decoder: Decoder, take: Take) -> None:
        self._connection = response.connection
        self._idle_timeout_s = leg.idle_timeout_s
        self._decoder = decoder
        self._take = take
        self._parse = SseParser().feed
        self._held: list[bytes] = []
        """Events that came with one for which there was no room."""
        self._now_s = asyncio.get_running_loop().time

    def feed(self, data: bytes) -> Room | bool | None:
        """Give the chunks, as far as there is room for them. True: the stream is at its end."""
        events = self._parse(data)
        if self._held:
            events, self._held = self._held + events, []
        for place, event in enumerate(events, 1):
            chunk = self._decoder.feed(event)
            if chunk:
                room = self._take(chunk)
                if chunk.token_ids:
                    self._connection.deadline_s = self._now_s() + self._idle_timeout_s
                if room is not None:
                    self._held = events[place:]
                    return room
        return self._decoder.is_done or None

    async def wait(self, room: Room) -> Room | bool | None:
        """Wait until there is room, and go on with what was held; meanwhile the engine is not late."""
        await room.wait()
        self._connection.deadline_s = self._now_s() + self._idle_timeout_s
        return self.feed(b"")


async def stream_leg(
    origin: HttpOrigin,
    path: str,
    body: bytes,
    leg: LegRequest,
    decoder: Decoder,
    take: Take,
    note_loss: Callable[[], None],
    headers: Mapping[str, str] = NO_HEADERS,
) -> None:
    """Post a leg and give its chunks to the proper end, see ``Engine.generate``; ``note_loss``: ids were lost."""
    response = await post_leg(origin, path, body, leg, headers)
    try:
        await check_stream(response)
        pump = LegPump(response, leg, decoder, take)
        while not decoder.is_done:
            room: Room | bool | None = await response.pump(pump.feed)
            if room is None:
                raise EngineBroken("the stream ended without [DONE]")
            while room is not None and not isinstance(room, bool):
                room = await pump.wait(room)
        response.finish()
    except IdsMissing:
        note_loss()
        raise
    except EventTooLarge as error:
        raise EngineBroken(str(error)) from None
    finally:
        await response.aclose()


async def get(origin: HttpOrigin, path: str, timeout_s: float) -> bytes:
    """Body of a 200. Raises EngineUnavailable, or EngineBroken for an answer that will not get better."""
    try:
        response = await origin.send("GET", path, head_timeout_s=timeout_s)
        try:
            body = await response.body()
        finally:
            await response.aclose()
    except EngineTimeout:
        raise EngineUnavailable(f"{path} was not answered in time") from None
    if response.status == 429 or response.status >= 500:
        raise EngineUnavailable(f"{path} answered {response.status}", retry_after_s(response))
    if response.status != 200:
        raise EngineBroken(f"{path} answered {response.status}")
    return body


async def post(origin: HttpOrigin, path: str, body: bytes, timeout_s: float) -> bytes:
    """Body of a 200. Raises EngineUnavailable, EngineRejected or EngineFailed."""
    try:
        response = await origin.send(
            "POST", path, body, headers={"Content-Type": "application/json"}, head_timeout_s=timeout_s
        )
        try:
            answer = await response.body()
        finally:
            await response.aclose()
    except EngineTimeout:
        raise EngineUnavailable(f"{path} was not answered in time") from None
    if response.status != 200:
        raise refusal(response.status, answer, retry_after_s(response))
    return answer


async def check_stream(response: Response) -> None:
    """Raise what the head amounts to, unless it is that of an event stream."""
    if response.status != 200:
        body = await response.body(MAX_REFUSAL_BYTES)
        raise refusal(response.status, body, retry_after_s(response))
    if not response.headers.get(b"content-type", b"").lower().startswith(b"text/event-stream"):
        raise EngineBroken("the answer is not an event stream")


def retry_after_s(response: Response) -> float | None:
    """Retry-After in seconds, given as a number or as a date; None when absent or senseless."""
    value = response.headers.get(b"retry-after", b"").decode("latin-1").strip()
    if value.isascii() and value.isdigit():
        return min(float(value), MAX_RETRY_AFTER_S)
    with contextlib.suppress(ValueError):
        wait_s = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        return min(max(0.0, wait_s), MAX_RETRY_AFTER_S)
    return None
