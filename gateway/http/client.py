"""The client's side of a running request: it may leave, or stop reading, at any moment."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from starlette.types import Message, Receive, Send

from gateway.http.body import ClientDisconnected, ClientStalled
from gateway.tasks import end_task

MOST_WAITING_BYTES = 64 << 10
"""A stream with more than this on its hands takes no more from engines until the client has read."""


class ShuttingDown(Exception):
    """The gateway ends, and the answer with it."""


class Client:
    """Sends to the client, and ends the block that it guards when the client is gone.

    The block then raises ClientDisconnected or ClientStalled, or what ``leave`` was told.

    One task waits for the disconnect and one timer looks for a stuck write, for the whole block: a chunk costs neither.
    """

    opening: Message | None = None
    """What began the answer; None: nothing was sent."""
    is_complete = False
    """The whole answer was sent."""

    def __init__(self, receive: Receive, send: Send, write_timeout_s: float) -> None:
        self._receive = receive
        self._send = send
        self._write_timeout_s = write_timeout_s
        self._sending_since: float | None = None
        self._loss: BaseException | None = None

    async def __aenter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._cancelled_before = task.cancelling()
        self._loop = asyncio.get_running_loop()
        self._watcher = self._loop.create_task(self._watch())
        self._timer = self._loop.call_later(self._write_timeout_s, self._look_for_stall)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        self._watcher.cancel()
        loss = self._loss
        if loss is not None and self._task.uncancel() <= self._cancelled_before and kind is asyncio.CancelledError:
            raise loss from error

    async def send(self, message: Message) -> None:
        """Send one ASGI message; waits while the client does not read what it was sent before."""
        self._sending_since = self._loop.time()
        await self._send(message)
        self._sending_since = None
        if not message.get("more_body", False):
            self._note_edge(message)

    def leave(self, loss: BaseException) -> None:
        """Let the block raise ``loss``, unless it ends for another reason already."""
        if self._loss is None:
            self._loss = loss
            self._task.cancel()

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.leave(ClientDisconnected())

    def _look_for_stall(self) -> None:
        since = self._sending_since
        if since is not None and self._loop.time() - since >= self._write_timeout_s:
            self.leave(ClientStalled())
            return
        due = (self._loop.time() if since is None else since) + self._write_timeout_s
        self._timer = self._loop.call_at(due, self._look_for_stall)

    def _note_edge(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.opening = message
        else:
            self.is_complete = True


class EventStream:
    """A streamed answer: what is pushed goes out in order, as fast as the client reads; nobody who pushes waits.

    ``room`` is set while the client is not far behind. Nothing is sent, the status line neither, before the first push.
    """

    def __init__(self, client: Client, head: Message) -> None:
        self._client = client
        self._head = head
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._wake: asyncio.Future[None] | None = None
        self._is_ended = False
        self._task: asyncio.Task[None] | None = None
        self.room = asyncio.Event()
        self.room.set()

    @property
    def has_begun(self) -> bool:
        """Whether anything was pushed, so that the status line is on its way."""
        return self._task is not None

    def push(self, data: bytes) -> None:
        """Send ``data`` after what was pushed before; nothing goes out after the end."""
        if self._is_ended:
            return
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        if self._waiting_bytes > MOST_WAITING_BYTES:
            self.room.clear()
        if self._task is None:
            self._task = asyncio.create_task(self._send())
            self._task.add_done_callback(self._on_sent)
        elif self._wake is not None and not self._wake.done():
            self._wake.set_result(None)
            self._wake = None

    async def end(self, data: bytes) -> None:
        """Send ``data`` as the last, and wait until the client was sent everything."""
        self.push(data)
        self._is_ended = True
        assert self._task is not None
        await self._task

    async def aclose(self) -> None:
        """Send nothing more. Idempotent."""
        self._is_ended = True
        if self._task is not None and not self._task.done():
            await end_task(self._task)

    async def _send(self) -> None:
        await self._client.send(self._head)
        while True:
            while self._waiting:
                data = b"".join(self._waiting)
                self._waiting.clear()
                is_last = self._is_ended
                await self._client.send({"type": "http.response.body", "body": data, "more_body": not is_last})
                if is_last:
                    return
                self._waiting_bytes = sum(map(len, self._waiting))
                self.room.set()
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake

    def _on_sent(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._client.leave(error)


class Clients:
    """The clients whose answers run."""

    def __init__(self) -> None:
        self._open: set[Client] = set()
        self.is_over = False
        """No more answers are given."""

    @contextmanager
    def holding(self, client: Client) -> Iterator[None]:
        """Count the client, whose block must have been entered, while this block runs."""
        self._open.add(client)
        try:
            yield
        finally:
            self._open.discard(client)

    def cut_off(self) -> None:
        """End all answers now: their clients' blocks raise ShuttingDown."""
        self.is_over = True
        for client in tuple(self._open):
            client.leave(ShuttingDown())
