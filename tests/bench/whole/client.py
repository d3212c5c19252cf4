"""Load: keep-alive connections that ask for streams, one after another on each."""

import asyncio
import itertools
import time
from dataclasses import dataclass, field
from typing import cast

MARK = "@@@@@@@@"
"""Stands in a body for what makes each prompt another one."""
RETRY_S = 0.2
"""Clients of a gateway that refuses wait before they ask again."""
END = b"0\r\n\r\n"


@dataclass(slots=True)
class Load:
    """What was asked and what came. ``refused``: answers of 503. ``ttft_s``: of those that were answered."""

    port: int
    body: bytes
    wanted: int
    asked: int = 0
    done: int = 0
    refused: int = 0
    failures: list[bytes] = field(default_factory=list)
    events: int = 0
    ttft_s: list[float] = field(default_factory=list)
    elapsed_s: float = 0.0

    def ttft_at(self, share: float) -> float:
        """Return a quantile of the times to the first token."""
        ordered = sorted(self.ttft_s)
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


class Connection(asyncio.Protocol):
    """One connection; ``over`` is set when nothing is left to ask, or it has gone."""

    numbers = itertools.count(int(time.time() * 1000) % 10_000_000 * 10)

    def __init__(self, load: Load) -> None:
        self._load = load
        self._tail = b""
        self._asked_s: float | None = None
        self._has_begun = False
        self.over = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._ask()

    def _ask(self) -> None:
        load = self._load
        if load.asked == load.wanted:
            self._asked_s = None
            self._transport.close()
            return
        load.asked += 1
        self._tail, self._has_begun = b"", False
        body = load.body.replace(MARK.encode(), b"%08d" % (next(self.numbers) % 100_000_000))
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        self._asked_s = time.perf_counter()
        self._transport.writelines([head, b"Content-Length: %d\r\n\r\n" % len(body), body])

    def data_received(self, data: bytes) -> None:
        load = self._load
        if not self._has_begun and not self._tail and not data.startswith(b"HTTP/1.1 200"):
            if data.startswith(b"HTTP/1.1 503"):
                load.refused += 1
            else:
                load.failures.append(data[:500])
            self._asked_s = None
            self._transport.close()
            return
        if not self._has_begun and b"data: " in data:
            self._has_begun = True
            assert self._asked_s is not None
            load.ttft_s.append(time.perf_counter() - self._asked_s)
        load.events += data.count(b"data: ")
        self._tail = (self._tail + data)[-len(END) :]
        if self._tail == END:
            load.done += 1
            self._ask()

    def connection_lost(self, error: Exception | None) -> None:
        if self._asked_s is not None:
            self._load.failures.append(b"the connection was cut")
        if not self.over.done():
            self.over.set_result(None)


async def ask(port: int, body: bytes, streams: int, wanted: int, ramp_s: float = 0.0) -> Load:
    """Ask ``wanted`` times over ``streams`` connections, which are opened one by one within ``ramp_s``."""
    load, loop = Load(port, body, wanted), asyncio.get_running_loop()
    started_s = time.perf_counter()

    async def run(wait_s: float) -> None:
        await asyncio.sleep(wait_s)
        while load.asked < load.wanted:
            _, connection = await loop.create_connection(lambda: Connection(load), "127.0.0.1", port)
            await connection.over
            if load.refused:
                await asyncio.sleep(RETRY_S)

    async with asyncio.timeout(90):
        await asyncio.gather(*(run(ramp_s * number / streams) for number in range(streams)))
    load.elapsed_s = time.perf_counter() - started_s
    return load
