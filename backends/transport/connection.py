"""One client connection of HTTP/1.1, made for answers that are long streams of small pieces.

A piece costs one parser call, one list append and one call of whoever takes it: no task, no queue, no timer of its own.
Time limits use one timer handle that is armed again only when it fires too early, so moving the deadline is one
assignment.

The exchange's course: ``begin`` -> ``head`` -> ``pump`` until None, or ``read`` until b"" -> ``finish``; or ``abort``
at any point.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar, cast

import httptools

from backends.errors import BackendError, EngineBroken, EngineTimeout, EngineUnavailable

Reply = TypeVar("Reply")
MAX_HEAD_BYTES = 64 * 1024
HIGH_WATER_BYTES = 256 * 1024
DRAIN_S = 1.0
"""How long a connection whose answer is known in full may take to end it properly before it is closed."""


class HttpConnection(asyncio.Protocol):
    """Carries one exchange at a time. ``on_free`` is called when it may carry another, ``on_lost`` when it is gone."""

    def __init__(
        self, on_free: Callable[["HttpConnection"], None], on_lost: Callable[["HttpConnection"], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_free = on_free
        self._on_lost = on_lost
        self._transport = cast(asyncio.Transport, None)
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._waiter: asyncio.Future[object] | None = None
        self._take: Callable[[bytes], object] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0
        """When it fires."""
        self._error: BackendError | None = None
        self._is_idle = True
        self._is_paused = False
        self.idle_since_s = 0.0
        self.deadline_s = 0.0
        """Loop time by which a byte that is being waited for must have come. May be moved at any time."""
        self._reset()

    def _reset(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self._chunks: list[bytes] = []
        self._buffered_bytes = 0
        self._head_bytes = 0
        self._has_head = False
        self._is_complete = False
        self._is_draining = False
        self._may_stay_open = False

    @property
    def is_usable(self) -> bool:
        """Nothing is known that would keep the next exchange from working."""
        return not self._transport.is_closing()

    @property
    def is_closed(self) -> bool:
        return self._closed.done()

    def begin(self, request: bytes, deadline_s: float) -> None:
        """Send a whole request; its answer is awaited from here on."""
        self._reset()
        self._is_idle = False
        self.deadline_s = deadline_s
        if self.is_usable:
            self._transport.write(request)
        else:
            self._error = EngineUnavailable("connection lost before any answer")

    async def head(self) -> None:
        """Wait for ``status`` and ``headers``. Raises EngineUnavailable, EngineTimeout or EngineBroken."""
        while not self._has_head:
            if self._error:
                raise self._error
            self._waiter = self._loop.create_future()
            self._arm()
            try:
                await self._waiter
            finally:
                self._waiter = None

    async def pump(self, take: Callable[[bytes], Reply | None]) -> Reply | None:
        """Give ``take`` what comes of the body, in the turn in which it comes, until it answers: return that.

        None: the body is at its end. What comes behind the answer waits for the next call. Raises EngineTimeout, or
        EngineBroken when the body was cut, after all that came before; and what ``take`` raises.
        """
        while True:
            if self._chunks and (answer := take(self._next_data())) is not None:
                return answer
            if self._is_complete:
                return None
            if self._error:
                raise self._error
            self._waiter, self._take = self._loop.create_future(), take
            if self._timer is None or self._timer_s > self.deadline_s:
                self._arm()
            try:
                answer = cast("Reply | None", await self._waiter)
            finally:
                self._waiter = self._take = None
            if answer is not None:
                return answer

    async def read(self) -> bytes:
        """Return what came of the body since the last call, at least one byte; b"" at its end. Raises as ``pump``."""
        return await self.pump(_as_it_is) or b""

    def finish(self) -> None:
        """The caller knows all it wants: keep the connection for another exchange once this one is properly over."""
        self._is_draining = True
        if self._is_complete:
            self._free()
            return
        if self.is_closed:
            return
        self._next_data()
        self._cancel_timer()
        self._timer = self._loop.call_later(DRAIN_S, self.abort)

    def abort(self) -> None:
        """Close now; what is not sent yet is not sent any more. Idempotent."""
        self._cancel_timer()
        self._transport.abort()

    async def closed(self) -> None:
        """Wait until the socket is closed, which takes one turn of the loop after ``abort``."""
        await asyncio.shield(self._closed)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._is_idle:
            self.abort()
            return
        if not self._has_head:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._fail(EngineBroken("the answer is not HTTP/1.1"))
            return
        if not self._has_head and self._head_bytes > MAX_HEAD_BYTES:
            self._fail(EngineBroken(f"the answer's head is larger than {MAX_HEAD_BYTES} bytes"))
        elif self._take is not None and self._chunks:
            self._give(self._take)
        elif self._buffered_bytes > HIGH_WATER_BYTES and not self._is_paused:
            if self._is_draining:
                self.abort()
            else:
                self._is_paused = True
                self._transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timer()
        if not self._is_idle and not self._is_complete:
            if self._ends_at_close() and exc is None:
                self._is_complete = True
            elif self._error is None:
                reason = f" ({type(exc).__name__})" if exc else ""
                self._error = (
                    EngineBroken(f"connection lost in the middle of an answer{reason}")
                    if self._head_bytes
                    else EngineUnavailable(f"connection lost before any answer{reason}")
                )
        self._wake()
        self._closed.set_result(None)
        self._on_lost(self)

    # httptools callbacks

    def on_message_begin(self) -> None:
        """Called before each head. A second answer to one request is nothing we could use."""
        if self._is_complete:
            raise EngineBroken("more than one answer")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called for each header, and for each trailer too, which is ignored."""
        if not self._has_head:
            self.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        """Called for each head; those of 1xx answers come before the real one."""
        self.status = self._parser.get_status_code()
        if self.status < 200:
            self.headers = {}
            return
        self._has_head = True
        self._wake()

    def on_body(self, body: bytes) -> None:
        """Called for each piece of the body."""
        self._buffered_bytes += len(body)
        if not self._is_draining:
            self._chunks.append(body)

    def on_message_complete(self) -> None:
        """Called at the end of a body whose end can be told from its bytes."""
        if not self._has_head:
            return
        self._is_complete = True
        self._may_stay_open = self._parser.should_keep_alive()
        self._wake()
        if self._is_draining:
            self._free()

    # inner works

    def _next_data(self) -> bytes:
        """Return what came of the body, and let more come."""
        data = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        self._buffered_bytes = 0
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()
        return data

    def _give(self, take: Callable[[bytes], object]) -> None:
        """Give what has come to whoever pumps, who goes on waiting unless there is an answer or a failure."""
        waiter = self._waiter
        if waiter is None or waiter.done():
            return
        answer: object = None
        data = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        self._buffered_bytes = 0
        try:
            answer = take(data)
        except Exception as error:  # it is the failure of who waits, whatever it is
            if not waiter.done():
                waiter.set_exception(error)
        if answer is not None and not waiter.done():
            waiter.set_result(answer)
        elif self._timer_s > self.deadline_s:
            self._arm()

    def _ends_at_close(self) -> bool:
        lengths = self.headers.keys() & {b"content-length", b"transfer-encoding"}
        return self._has_head and not lengths

    def _free(self) -> None:
        self._cancel_timer()
        if self._may_stay_open and self.is_usable and not self._transport.get_write_buffer_size():
            self._is_idle = True
            self.idle_since_s = self._loop.time()
            self._on_free(self)
        else:
            self.abort()

    def _fail(self, error: BackendError) -> None:
        self._error = error
        self._wake()
        self.abort()

    def _wake(self) -> None:
        if self._waiter and not self._waiter.done():
            self._waiter.set_result(None)

    def _arm(self) -> None:
        if self._timer and self._timer_s > self.deadline_s:
            self._cancel_timer()
        if self._timer is None:
            self._timer_s = self.deadline_s
            self._timer = self._loop.call_at(self._timer_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self._waiter is None:
            return
        if self._loop.time() < self.deadline_s:
            self._arm()
        else:
            self._fail(EngineTimeout("no answer in time" if not self._has_head else "the stream fell silent"))

    def _cancel_timer(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None


def _as_it_is(data: bytes) -> bytes:
    return data
