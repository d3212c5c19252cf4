"""What a streamed chunk costs: the engine client against httpx, in one run, in CPU time of the client's process alone.

``saturated``: the engine writes as fast as it can, so one wake-up carries many chunks. ``paced``: one wake-up a
chunk, as in real streams. Both clients parse each event.
"""

import asyncio
import contextlib
import multiprocessing
import statistics
import time
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection

import httpx
import orjson
import uvloop

from backends.engines.vllm import VllmEngine
from backends.engines.vllm_completions import STREAM_OPTIONS
from backends.types import LegRequest

SATURATED_CHUNKS = 20_000
PACED_CHUNKS = 1_500
ROUNDS = 3
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


async def measure(read: Callable[[int, bool], Awaitable[int]], chunks: int, is_paced: bool) -> float:
    """CPU microseconds a chunk, the median of a few rounds."""
    costs = []
    for _ in range(ROUNDS):
        started = time.process_time()
        assert await read(chunks, is_paced) == chunks
        costs.append((time.process_time() - started) / chunks * 1e6)
    return statistics.median(costs)


async def compare(url: str) -> dict[str, float]:
    """Both clients, both paces."""
    engine = VllmEngine("bench", url)

    async def lean(chunks: int, is_paced: bool) -> int:
        leg = LegRequest("bench", "demo-model", [1, 2, 3], chunks, priority=int(is_paced))
        return sum([len(chunk.token_ids) async for chunk in engine.generate(leg)])

    figures: dict[str, float] = {}
    async with httpx.AsyncClient() as client:

        async def by_httpx(chunks: int, is_paced: bool) -> int:
            body = {"max_tokens": chunks, "priority": int(is_paced), "stream_options": STREAM_OPTIONS}
            tokens = 0
            async with client.stream("POST", f"{url}/v1/completions", json=body) as response:
                async for line in response.aiter_lines():
                    if line.startswith("data: ") and line != "data: [DONE]":
                        tokens += len(orjson.loads(line[6:])["choices"][0]["token_ids"])
            return tokens

        for pace, chunks in (("saturated", SATURATED_CHUNKS), ("paced", PACED_CHUNKS)):
            lean_us = await measure(lean, chunks, pace == "paced")
            httpx_us = await measure(by_httpx, chunks, pace == "paced")
            figures[f"stream_{pace}_chunk_us"] = lean_us
            figures[f"stream_{pace}_chunk_httpx_us"] = httpx_us
            figures[f"stream_{pace}_httpx_ratio"] = httpx_us / lean_us
    await engine.aclose()
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
        print(f"{name:32} {value:8.2f}")
    return figures


if __name__ == "__main__":
    run()
