"""What one tenant, and somebody without a key, do to hurt the others."""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from urllib.parse import urlsplit

import orjson

from tests.chaos.engine import MODEL, POISON_500, POISON_CUT

USER = {"role": "user", "content": "Hi"}
PAUSE_S = 0.2
LONG_BODY = 2 << 20
REPLY_S = 30.0


def arguments(text: str) -> bytes:
    """A chat whose past has a tool call with these arguments."""
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": text}}
    messages = [USER, {"role": "assistant", "tool_calls": [call]}, USER]
    return orjson.dumps({"model": MODEL, "messages": messages, "max_tokens": 4})


BODIES: dict[str, tuple[str, bytes]] = {
    "many values in arguments": ("chat/completions", arguments("[" + "0," * (LONG_BODY // 2) + "0]")),
    "deep arguments": ("chat/completions", arguments("[" * 100_000)),
    "much beside the prompt": (
        "completions",
        orjson.dumps({"model": MODEL, "prompt": [5], "n": 60, "odd": "x" * LONG_BODY}),
    ),
    "a long text": ("completions", orjson.dumps({"model": MODEL, "prompt": "hello there " * 100_000})),
    "a prompt that makes engines answer 500": (
        "completions",
        orjson.dumps({"model": MODEL, "prompt": [POISON_500, 5, 6], "n": 2, "max_tokens": 4}),
    ),
    "a prompt that makes engines cut": (
        "completions",
        orjson.dumps({"model": MODEL, "prompt": [POISON_CUT, 5, 6], "max_tokens": 4}),
    ),
}


async def post(url: str, key: str, path: str, body: bytes) -> int:
    """Ask once; the status, 0 where the connection was refused or cut."""
    address = urlsplit(url)
    try:
        async with asyncio.timeout(REPLY_S):
            reader, writer = await asyncio.open_connection(address.hostname, address.port)
            try:
                head = (
                    f"POST /v1/{path} HTTP/1.1\r\nHost: chaos\r\nAuthorization: Bearer {key}\r\nConnection: close\r\n"
                )
                writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
                status = int((await reader.readline()).split()[1])
                await reader.read()
                return status
            finally:
                writer.transport.abort()
    except (OSError, IndexError, TimeoutError):
        return 0


async def send_bodies(urls: Callable[[], list[str]], key: str, seed: int, statuses: Counter[int]) -> None:
    """Ask for what hurts, one request after the other."""
    rng = random.Random(seed)
    while True:
        path, body = rng.choice(list(BODIES.values()))
        statuses[await post(rng.choice(urls()), key, path, body)] += 1
        await asyncio.sleep(PAUSE_S)


async def leave_bodies_unfinished(urls: Callable[[], list[str]], key: str, statuses: Counter[int]) -> None:
    """Promise long bodies and send half of them."""
    head = f"POST /v1/completions HTTP/1.1\r\nHost: chaos\r\nAuthorization: Bearer {key}\r\n"
    head += f"Content-Length: {2 * LONG_BODY}\r\n\r\n"
    while True:
        await crowd(urls(), 12, head.encode() + b" " * LONG_BODY, 2.0)
        statuses[-1] += 12


async def crowd_the_doors(urls: Callable[[], list[str]], statuses: Counter[int]) -> None:
    """Open many connections without a key, and send a byte of a head on each."""
    while True:
        await crowd(urls(), 100, b"G", 2.0)
        statuses[-2] += 100


async def crowd(urls: list[str], count: int, data: bytes, hold_s: float) -> None:
    """Open so many connections, send on each, hold them and leave."""
    writers = []
    try:
        for number in range(count):
            address = urlsplit(urls[number % len(urls)])
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection(address.hostname, address.port)
                writer.write(data)
                writers.append(writer)
        await asyncio.sleep(hold_s)
    finally:
        for writer in writers:
            writer.transport.abort()


def all_attacks(
    urls: Callable[[], list[str]], key: str, seed: int, statuses: Counter[int]
) -> list[Coroutine[None, None, None]]:
    """Everything at once."""
    bodies = [send_bodies(urls, key, seed + number, statuses) for number in range(4)]
    return [*bodies, leave_bodies_unfinished(urls, key, statuses), crowd_the_doors(urls, statuses)]
