"""Workers of one ``pdd serve`` ask each other for what only one of them knows, over sockets in a private folder.

They share one address, so whoever a scrape or an operator reaches answers for all: metrics of all workers on one page,
each sample with its ``worker``, and the timeline of a request that another one served.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path

ANSWER_S = 2.0
MOST_QUESTION_BYTES = 4096
METRICS = "metrics"
TIMELINE, REQUESTS = "timeline ", "requests "
"""Followed by a request's id, and by how many are wanted."""

Answers = Callable[[str], bytes]
"""What a worker answers to a question of the others; nothing: it does not know."""


class Siblings:
    """Worker ``number`` of ``count``; each has a socket in ``folder``."""

    def __init__(self, folder: Path, number: int, count: int) -> None:
        self.number = number
        self._count = count
        self._folder = folder
        self._server: asyncio.Server | None = None

    async def start(self, answer: Answers) -> None:
        """Answer the others from here on."""

        async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(ANSWER_S):
                    writer.write(answer((await reader.read(MOST_QUESTION_BYTES)).decode()))
                    await writer.drain()
            await _close(writer)

        path = self._path(self.number)
        await asyncio.to_thread(path.unlink, missing_ok=True)  # of a worker that was killed
        self._server = await asyncio.start_unix_server(take, path)

    async def aclose(self) -> None:
        """Answer no more."""
        if self._server is not None:
            self._server.close()

    async def ask(self, question: str) -> dict[int, bytes]:
        """Return the answers of the others, by worker; who is not there, or busy for too long, is left out."""
        numbers = [number for number in range(self._count) if number != self.number]
        answers = await asyncio.gather(*(self._ask_one(number, question) for number in numbers))
        return {number: answer for number, answer in zip(numbers, answers, strict=True) if answer}

    async def _ask_one(self, number: int, question: str) -> bytes:
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(ANSWER_S):
                reader, writer = await asyncio.open_unix_connection(self._path(number))
                try:
                    writer.write(question.encode())
                    return await reader.read(-1)
                finally:
                    await _close(writer)
        return b""

    def _path(self, number: int) -> Path:
        return self._folder / f"{number}.sock"


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


def merge_pages(pages: Mapping[int, bytes]) -> bytes:
    """Return one page of several workers': what is said of a family stands once, each sample names its worker."""
    heads: dict[bytes, list[bytes]] = {}
    samples: dict[bytes, list[bytes]] = {}
    for number, page in sorted(pages.items()):
        name = b""
        is_known = False
        for line in page.splitlines():
            if line.startswith(b"# HELP "):
                name = line.split(b" ", 3)[2]
                is_known = name in heads
                heads.setdefault(name, [])
                samples.setdefault(name, [])
            if not line.startswith(b"#"):
                samples[name].append(_label(line, number))
            elif not is_known:
                heads[name].append(line)
    return b"".join(line + b"\n" for name in heads for line in (*heads[name], *samples[name]))


def _label(sample: bytes, worker: int) -> bytes:
    name, brace, rest = sample.partition(b"{")
    if brace and b" " not in name:
        return b'%s{worker="%d",%s' % (name, worker, rest)
    name, _, rest = sample.partition(b" ")
    return b'%s{worker="%d"} %s' % (name, worker, rest)
