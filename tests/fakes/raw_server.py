"""A TCP server that answers each request, told by its blank line and Content-Length, with scripted bytes."""

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

from tests.fakes.gates import Watch

Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


def say(*pieces: bytes) -> Answer:
    """Write these pieces and keep the connection open."""

    async def answer(writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)

    return answer


def say_and_close(*pieces: bytes) -> Answer:
    """Write these pieces, then close."""

    async def answer(writer: asyncio.StreamWriter) -> None:
        await say(*pieces)(writer)
        writer.close()

    return answer


class RawServer:
    """Gives ``answers`` in order, over all connections, and closes a connection for which there is none left."""

    def __init__(self, *answers: Answer) -> None:
        self._answers = list(answers)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.requests: list[bytes] = []
        self.accepted = 0
        self._watch = Watch()
        self.url = ""

    async def connected(self, count: int = 1) -> None:
        """Wait until ``count`` connections were accepted in all."""
        await self._watch.until(lambda: self.accepted >= count)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        self._watch.changed()
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                lines = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:-2])
                body = await reader.readexactly(int(lines.get(b"content-length", 0)))
                self.requests.append(head + body)
                if not self._answers:
                    break
                await self._answers.pop(0)(writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            self._writers.discard(writer)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server:
            self._server.close()
        for writer in tuple(self._writers):
            writer.transport.abort()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
