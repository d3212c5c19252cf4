"""An OpenAI-compatible server that says what a test wrote down, and remembers what it was asked."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from tests.fakes.engine import answer, send_piece
from tests.fakes.gates import HoldGate
from tests.fakes.server import AppServer

Send = Callable[[dict[str, Any]], Awaitable[None]]
JSON = ((b"content-type", b"application/json"),)
SSE = ((b"content-type", b"text/event-stream"),)


@dataclass(frozen=True, slots=True)
class Say:
    """One answer. A gate among the pieces is held there; ``cut``: the connection breaks after the last piece."""

    pieces: tuple[bytes | HoldGate, ...] = (b'{"ok":true}',)
    status: int = 200
    headers: tuple[tuple[bytes, bytes], ...] = JSON
    before: HoldGate | None = None
    cut: bool = False


NOTHING = Say((), cut=True)
"""The connection breaks without any answer."""


@dataclass(slots=True, eq=False)
class Asked:
    """One request as it came."""

    path: str
    query: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes
    state: Literal["running", "ended", "aborted"] = "running"

    def header(self, name: str) -> str | None:
        """The value of a header; None: it did not come."""
        values = [value.decode() for key, value in self.headers if key.decode() == name]
        assert len(values) < 2
        return values[0] if values else None


class FakeUpstream(AppServer):
    """Serves ``models``; ``answers`` come first, then ``say``."""

    def __init__(self, *models: str) -> None:
        super().__init__(self._app)
        self.models_answer = Say((orjson.dumps({"object": "list", "data": [{"id": name} for name in models]}),))
        self.say = Say()
        self.answers: deque[Say] = deque()
        self.asked: list[Asked] = []

    @property
    def running(self) -> int:
        """Requests being answered now."""
        return sum(asked.state == "running" for asked in self.asked)

    async def idle(self) -> None:
        """Wait until nothing is being answered."""
        await self._watch.until(lambda: not self.running)

    async def _app(self, scope: dict[str, Any], receive: Callable[[], Any], send: Send) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        if scope["method"] == "GET":
            text = self.models_answer.pieces[0]
            assert isinstance(text, bytes)
            await answer(send, self.models_answer.status, text)
            return
        asked = Asked(scope["path"], scope["query_string"], list(scope["headers"]), body)
        self.asked.append(asked)
        self._watch.changed()
        said = self.answers.popleft() if self.answers else self.say
        telling = asyncio.ensure_future(self._tell(said, send, scope["state"]["transport"]))
        leaving = asyncio.ensure_future(receive())
        try:
            await asyncio.wait({telling, leaving}, return_when=asyncio.FIRST_COMPLETED)
            asked.state = "ended" if telling.done() else "aborted"
        finally:
            self._watch.changed()
            for task in (telling, leaving):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    async def _tell(self, said: Say, send: Send, transport: asyncio.Transport) -> None:
        if said.before:
            await said.before.hold()
        if said.pieces or not said.cut:
            await send({"type": "http.response.start", "status": said.status, "headers": list(said.headers)})
        for piece in said.pieces:
            if isinstance(piece, bytes):
                await send_piece(send, piece)
            else:
                await piece.hold()
        if said.cut:
            transport.close()
        else:
            await send({"type": "http.response.body", "body": b""})
