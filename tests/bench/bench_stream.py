"""What streams and requests cost: the engine client against aiohttp and httpx, interleaved in one run.

CPU time of the client's process alone. All three carry the same legs under the same ``stream_leg``, so only the HTTP
client differs. ``saturated``: the engine writes as fast as it can, so one wake-up carries many chunks. ``paced``: one
wake-up a chunk, as in real streams. ``request``: legs of one token, one after another on a connection that stays open.
A ratio is the rival's cost by ours, the median of short rounds in which all three take turns.
"""

import asyncio
import contextlib
import multiprocessing
import statistics
import time
from collections.abc import AsyncIterator, Callable, Mapping
from multiprocessing.connection import Connection
from typing import Protocol, cast

import aiohttp
import httpx
import orjson
import uvloop

from backends.engines.http_engine import stream_leg
from backends.engines.vllm_completions import CompletionDecoder, encode_leg
from backends.transport.client import HttpOrigin
from backends.types import LegRequest

SATURATED_CHUNKS = 4_000
PACED_CHUNKS = 300
REQUESTS = 100
ROUNDS = 25
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def frame(event: bytes) -> bytes:
    """One SSE event as one HTTP chunk."""
    data = b"data: " + event + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(data), data)


def token_frame(token: int, finish: str | None = None, usage_of: int | None = None) -> bytes:
    """One token as vLLM writes it; ``usage_of``: with the usage of so many tokens."""
    choice = {"index": 0, "text": f" word{token}", "logprobs": None, "finish_reason": finish, "stop_reason": None}
    choice |= {"token_ids": [token], "prompt_token_ids": None}
    head = {"id": "cmpl-0123456789abcdef0123456789abcdef", "object": "text_completion", "created": 1790000000}
    usage = None
    if usage_of is not None:
        usage = {"prompt_tokens": 3, "total_tokens": 3 + usage_of, "completion_tokens": usage_of}
    return frame(orjson.dumps(head | {"model": "demo-model", "choices": [choice], "usage": usage}))


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer each request with as many tokens as it asks for; a priority of 1 means paced."""
    with contextlib.suppress(asyncio.IncompleteReadError):
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
            body = orjson.loads(await reader.readexactly(int(length.partition(b":")[2])))
            counts = body["stream_options"].get("continuous_usage_stats")
            writer.write(HEAD)
            for token in range(body["max_tokens"] - 1):
                writer.write(token_frame(token, usage_of=token + 1 if counts else None))
                if body.get("priority"):
                    await asyncio.sleep(0.001)
                elif token % 64 == 0:
                    await writer.drain()
            writer.write(token_frame(7, "length") + frame(b"[DONE]") + b"0\r\n\r\n")
    writer.close()


def serve(port: Connection) -> None:
    """Process of the engine; ends when its parent closes the pipe."""

    async def main() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port.send(server.sockets[0].getsockname()[1])
        await asyncio.to_thread(port.poll, None)

    asyncio.run(main())


class Client(Protocol):
    """What ``stream_leg`` asks of an origin."""

    async def send(
        self, method: str, path: str, body: bytes, *, headers: Mapping[str, str], head_timeout_s: float
    ) -> object:
        """Return an answer whose head has come."""
        ...


class RivalAnswer:
    """What ``stream_leg`` asks of an answer. The rivals' time limits hold for each read and cannot be moved."""

    def __init__(self, status: int, content_type: str) -> None:
        self.status = status
        self.headers = {b"content-type": content_type.encode()}
        self.is_over = False
        self.connection = self
        self.deadline_s = 0.0
        """Nobody looks at it: deadlines are the rival's own affair."""

    async def read(self) -> bytes:
        """Return the next piece."""
        raise NotImplementedError

    async def pump(self, take: Callable[[bytes], object]) -> object:
        """Give ``take`` each piece until it answers."""
        while piece := await self.read():
            if (found := take(piece)) is not None:
                return found
        return None

    def finish(self) -> None:
        """Keep the connection."""
        self.is_over = True


class AiohttpAnswer(RivalAnswer):
    """An answer of aiohttp."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        super().__init__(response.status, response.headers["Content-Type"])
        self._response = response

    async def read(self) -> bytes:
        """Return the next piece."""
        return await self._response.content.readany()

    async def aclose(self) -> None:
        """Read the rest of the framing, without which the connection is not used again; or close it."""
        if not self.is_over:
            self._response.close()
        elif not self._response.content.at_eof():
            await self._response.read()


class HttpxAnswer(RivalAnswer):
    """An answer of httpx."""

    def __init__(self, response: httpx.Response) -> None:
        super().__init__(response.status_code, response.headers["Content-Type"])
        self._response = response
        self._pieces = response.aiter_raw()

    async def read(self) -> bytes:
        """Return the next piece."""
        return await anext(self._pieces, b"")

    async def aclose(self) -> None:
        """Read the rest of the framing, without which the connection is not used again; or close it."""
        while self.is_over and await self.read():
            pass
        await self._response.aclose()


class AiohttpClient:
    """aiohttp in the place of the engine client."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url

    async def send(
        self, method: str, path: str, body: bytes, *, headers: Mapping[str, str], head_timeout_s: float
    ) -> AiohttpAnswer:
        """Send a request."""
        timeout = aiohttp.ClientTimeout(total=None, sock_read=head_timeout_s)
        answer = await self._session.request(method, self._url + path, data=body, headers=headers, timeout=timeout)
        return AiohttpAnswer(answer)


class HttpxClient:
    """httpx in the place of the engine client."""

    def __init__(self, client: httpx.AsyncClient, url: str) -> None:
        self._client = client
        self._url = url

    async def send(
        self, method: str, path: str, body: bytes, *, headers: Mapping[str, str], head_timeout_s: float
    ) -> HttpxAnswer:
        """Send a request."""
        request = self._client.build_request(
            method, self._url + path, content=body, headers=headers, timeout=head_timeout_s
        )
        return HttpxAnswer(await self._client.send(request, stream=True))


@contextlib.asynccontextmanager
async def open_clients(url: str) -> AsyncIterator[dict[str, Client]]:
    """All three, by what their figures are called."""
    async with (
        aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False) as session,
        httpx.AsyncClient() as client,
    ):
        origin = HttpOrigin(url)
        yield {"": origin, "aiohttp": AiohttpClient(session, url), "httpx": HttpxClient(client, url)}
        await origin.aclose()


async def run_leg(client: Client, chunks: int, is_paced: bool) -> None:
    """One leg to its end."""
    leg = LegRequest("bench", "demo-model", [1, 2, 3], chunks, priority=int(is_paced))
    origin, decoder = cast(HttpOrigin, client), CompletionDecoder(None)
    ids: list[int] = []
    take = lambda chunk: ids.extend(chunk.token_ids)  # noqa: E731
    await stream_leg(origin, "/v1/completions", encode_leg(leg), leg, decoder, take, lambda: None)
    assert len(ids) == chunks


async def cost_us(client: Client, legs: int, chunks: int, is_paced: bool) -> float:
    """CPU microseconds a chunk, of all legs."""
    started = time.process_time()
    for _ in range(legs):
        await run_leg(client, chunks, is_paced)
    return (time.process_time() - started) / (legs * chunks) * 1e6


async def compare(url: str) -> dict[str, float]:
    """Every client in turn, round by round."""
    figures: dict[str, float] = {}
    async with open_clients(url) as clients:
        for client in clients.values():
            await run_leg(client, 100, False)
        for label, legs, chunks, is_paced in (
            ("saturated_chunk", 1, SATURATED_CHUNKS, False),
            ("paced_chunk", 1, PACED_CHUNKS, True),
            ("request", REQUESTS, 1, False),
        ):
            costs: dict[str, list[float]] = {name: [] for name in clients}
            for _ in range(ROUNDS):
                for name, client in clients.items():
                    costs[name].append(await cost_us(client, legs, chunks, is_paced))
            for name, values in costs.items():
                figures[f"stream_{label}_{name}_us".replace("__", "_")] = statistics.median(values)
            for name in ("aiohttp", "httpx"):
                ratios = [theirs / ours for theirs, ours in zip(costs[name], costs[""], strict=True)]
                figures[f"stream_{label.removesuffix('_chunk')}_{name}_ratio"] = statistics.median(ratios)
    return figures


def run() -> dict[str, float]:
    """Start the engine's process, measure, print and return the figures."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            figures = runner.run(compare(f"http://127.0.0.1:{ours.recv()}"))
    finally:
        ours.close()
        process.terminate()
        process.join()
    for name, value in figures.items():
        print(f"{name:34} {value:8.2f}")
    return figures


if __name__ == "__main__":
    run()
