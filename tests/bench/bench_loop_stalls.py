"""The longest turn of the event loop that a very long prompt, or a very large cache, costs everybody else.

Prompts of a million tokens as ids, as text and as a chat, up to the engine's request; an engine that tells of 100,000
blocks in one message, holds a million, and clears them. What counts is the time between two turns, as far as this
process had a processor; the best of some rounds, as other processes only add to it.
"""

import asyncio
import random
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

from backends.engines.vllm_completions import encode_leg
from backends.types import LegRequest
from gateway.api.chat import prepare_chat
from gateway.api.completions import prepare_completion
from gateway.api.endpoint import parse
from gateway.api.models import Models
from gateway.api.prepare import Caller, PreparedRequest
from gateway.http.body import JsonObject
from gateway.index.shared import LocalIndex, RedisIndex
from gateway.index.types import CacheSpec
from gateway.redis.client import SharedRedis
from gateway.text.model import load_model
from tests.fakes.gates import Watch
from tests.gateway.index.publisher import CLEARED, Publisher, encode_batch, run_publisher, stored
from tests.gateway.model_dir import CORPUS, make_model_dir
from tests.valkey import run_valkey

TOKENS = 1_000_000
CONTEXT_TOKENS = 2 * TOKENS
INSTANCES = 16
MESSAGE_BLOCKS, EVENT_BLOCKS, MESSAGES = 100_000, 1_000, 10
ROUNDS = 3


class Turns:
    """Takes a turn of the loop again and again, and keeps the longest time between two."""

    def __init__(self) -> None:
        self.worst_s = 0.0

    async def run(self) -> None:
        """Until cancelled."""
        at = time.perf_counter(), time.process_time()
        while True:
            await asyncio.sleep(0)
            now = time.perf_counter(), time.process_time()
            self.worst_s = max(self.worst_s, min(now[0] - at[0], now[1] - at[1]))
            at = now


@contextmanager
def turns() -> Iterator[Turns]:
    """Look how long turns are within the block."""
    found = Turns()
    task = asyncio.create_task(found.run())
    try:
        yield found
    finally:
        task.cancel()


async def ask(
    body: bytes, prepare: Callable[[JsonObject, int, Models, Caller], Awaitable[PreparedRequest]], models: Models
) -> float:
    """Do all that is done for a request before an engine has it; each leg is a turn of its own."""
    index = LocalIndex(b"secret", 600.0, time.monotonic, lambda: None)
    for number in range(INSTANCES):
        index._mirror.admit(CacheSpec(f"i{number}", "m", 16))
    with turns() as found:
        await asyncio.sleep(0)
        value = await parse(body)
        prepared = await prepare(value, len(body), models, Caller("tenant"))
        request = prepared.requests[0]
        await index.name_ahead("m", request.prompt, "salt")
        index.lookup("m", request.prompt, "salt")
        await asyncio.sleep(0)
        encode_leg(LegRequest("r", "m", request.prompt, 5))
        await asyncio.sleep(0)
        index.note_routed("i0", "m", request.prompt, "salt")
        await asyncio.sleep(0)
    return found.worst_s


async def measure_requests() -> dict[str, float]:
    """Return the figures of each kind of prompt."""
    with tempfile.TemporaryDirectory() as folder:
        model = load_model("m", make_model_dir(Path(folder), context_tokens=CONTEXT_TOKENS))
    models = Models({"m": model}, 0)
    rng = random.Random(5)
    sentence = " ".join(CORPUS) + "\n"
    text = sentence * (TOKENS // len(model.encoder.encode_now(sentence)))
    ids = [rng.randrange(model.vocabulary.size) for _ in range(TOKENS)]
    bodies: dict[str, tuple[dict[str, Any], Any]] = {
        "ids": ({"prompt": ids}, prepare_completion),
        "text": ({"prompt": text}, prepare_completion),
        "chat": ({"messages": [{"role": "user", "content": text}]}, prepare_chat),
    }
    figures = {}
    for name, (fields, prepare) in bodies.items():
        body = orjson.dumps({"model": "m", "max_tokens": 5} | fields)
        figures[f"stall_1m_{name}_ms"] = min([await ask(body, prepare, models) for _ in range(ROUNDS)]) * 1e3
    model.close()
    return figures


def make_messages() -> list[bytes]:
    """Return messages of an engine that stores prompts one after the other."""
    rng, messages = random.Random(7), []
    for message in range(MESSAGES):
        events = []
        for first in range(message * MESSAGE_BLOCKS, (message + 1) * MESSAGE_BLOCKS, EVENT_BLOCKS):
            tokens = [rng.randrange(150_000) for _ in range(EVENT_BLOCKS * 16)]
            events.append(stored(range(first, first + EVENT_BLOCKS), tokens))
        messages.append(encode_batch(events))
    return messages


async def send(
    publisher: Publisher, number: int, payload: bytes, index: RedisIndex, changes: Watch, blocks: int
) -> float:
    """Send a message, wait until so many blocks are held, and return the longest turn meanwhile."""
    with turns() as found:
        await publisher.send_raw(b"", number.to_bytes(8, "big"), payload)
        async with asyncio.timeout(120):
            await changes.until(lambda: index.stats().instances["i0"].blocks == blocks)
    return found.worst_s


async def measure_events() -> dict[str, float]:
    """Return the figures of messages, and of a clear of all that they brought."""
    messages = make_messages()
    worst: list[float] = []
    async with run_valkey() as url, SharedRedis(url) as redis, run_publisher(replay=False) as publisher:
        changes = Watch()
        index = RedisIndex(redis, on_change=changes.changed)
        index.add_instance(CacheSpec("i0", "m", 16, (publisher.source,)))
        await index.start()
        await publisher.wait_for_subscriber()
        for number, payload in enumerate(messages):
            worst.append(await send(publisher, number, payload, index, changes, (number + 1) * MESSAGE_BLOCKS))
        clear_s = await send(publisher, MESSAGES, encode_batch([CLEARED]), index, changes, 0)
        await index.aclose()
    return {"stall_100k_blocks_ms": min(worst) * 1e3, "stall_clear_1m_blocks_ms": clear_s * 1e3}


async def measure() -> dict[str, float]:
    """Measure all."""
    return await measure_requests() | await measure_events()


def run() -> dict[str, float]:
    """Return the figures."""
    return asyncio.run(measure())


if __name__ == "__main__":
    for name, value in run().items():
        print(f"{name:32} {value:.1f}")
