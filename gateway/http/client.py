"""The client's side of a running request: it may leave, or stop reading, at any moment."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Self

from starlette.types import Message, Receive, Send

from gateway.http.body import ClientDisconnected, ClientStalled
from gateway.tasks import end_task, start_now

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
        if (rest := self.send_now(message)) is not None:
            await rest

    def send_now(self, message: Message) -> asyncio.Task[None] | None:
        """Send one ASGI message in this turn of the loop; the task does so once the client reads, where it does not."""
        rest = start_now(self._send(message))
        if rest is None:
            if not message.get("more_body", False):
                self._note_sent(message)
        else:
            self._sending_since = self._loop.time()
            rest.add_done_callback(partial(self._on_sent, message))
        return rest

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

    def _on_sent(self, message: Message, rest: asyncio.Task[None]) -> None:
        self._sending_since = None
        if not rest.cancelled() and rest.exception() is None:
            self._note_sent(message)

    def _note_sent(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.opening = message
        elif not message.get("more_body", False):
            self.is_complete = True


class EventStream:
    """A streamed answer: what is pushed goes out in order, as fast as the client reads; nobody who pushes waits.

    ``room`` is set while the client is not far behind. Nothing is sent, the status line neither, before the first push.
    """

    def __init__(self, client: Client, head: Message) -> None:
        self._client = client
        self._head: Message | None = head
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._sending: asyncio.Task[None] | None = None
        """What the client has to read before more is sent to it."""
        self._is_ended = False
        self._over: asyncio.Future[None] | None = None
        self.room = asyncio.Event()
        self.room.set()

    @property
    def has_begun(self) -> bool:
        """Whether anything was pushed, so that the status line is on its way."""
        return self._head is None

    def push(self, data: bytes) -> None:
        """Send ``data`` after what was pushed before; nothing goes out after the end."""
        if self._is_ended:
            return
        if self._sending is None:
            self._write(data)
        else:
            self._waiting.append(data)
            self._waiting_bytes += len(data)
        if self._sending is not None and self._waiting_bytes > MOST_WAITING_BYTES:
            self.room.clear()

    async def end(self, data: bytes) -> None:
        """Send ``data`` as the last, and wait until the client was sent everything."""
        self._is_ended = True
        if self._sending is None:
            self._write(data)
            await asyncio.sleep(0)  # where that lost the client, the block ends here
        else:
            self._waiting.append(data)
        if self._sending is not None:
            self._over = asyncio.get_running_loop().create_future()
            await self._over

    async def aclose(self) -> None:
        """Send nothing more. Idempotent."""
        self._is_ended = True
        if self._sending is not None:
            await end_task(self._sending)

    def _write(self, data: bytes) -> None:
        """Send what is next, after the head."""
        client, head, self._head = self._client, self._head, None
        try:
            if head is not None:
                self._sending = client.send_now(head)
            if self._sending is None:
                body: Message = {"type": "http.response.body", "body": data, "more_body": not self._is_ended}
                self._sending = client.send_now(body)
            else:
                self._waiting.append(data)
        except Exception as error:  # whatever a server raises, this client gets no more
            client.leave(error)
        if self._sending is not None:
            self._waiting_bytes = len(data)
            self._sending.add_done_callback(self._on_sent)

    def _on_sent(self, sending: asyncio.Task[None]) -> None:
        self._sending = None
        if sending.cancelled():
            return
        if (error := sending.exception()) is not None:
            self._client.leave(error)
            return
        if self._waiting:
            data = b"".join(self._waiting)
            self._waiting.clear()
            self._write(data)
        if self._sending is None:
            self._waiting_bytes = 0
            self.room.set()
            if self._over is not None and not self._over.done():
                self._over.set_result(None)


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
