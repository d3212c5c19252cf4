"""For how long the event loop stands still while a large body is read: a text, and the most values that are taken."""

import asyncio
import json
import statistics
import time

from gateway.api.endpoint import parse
from gateway.http.json_bounds import MOST_ENTRIES, MOST_VALUES

BODY_BYTES = 30_000_000
ROUNDS = 5


def bodies() -> dict[str, bytes]:
    """Return bodies by what they are made of."""
    sentence = "Some text, and more. "
    return {
        "text": json.dumps({"prompt": sentence * (BODY_BYTES // len(sentence))}).encode(),
        "ids": json.dumps({"prompt": [123] * MOST_VALUES}).encode(),
        "strings": json.dumps({"prompt": ["ab"] * MOST_VALUES}).encode(),
        "keys": json.dumps({"metadata": {str(number): "v" for number in range(MOST_ENTRIES - 3)}}).encode(),
        "lists": b'{"metadata": [' + b"[]," * (MOST_ENTRIES - 5) + b"[]]}",
    }


async def measure(body: bytes) -> float:
    """Return the longest time in seconds between two turns of the loop while a body is parsed."""
    longest_s, last_s = 0.0, time.perf_counter()
    work = asyncio.create_task(parse(body))
    while not work.done():
        await asyncio.sleep(0)
        now_s = time.perf_counter()
        longest_s, last_s = max(longest_s, now_s - last_s), now_s
    work.result()
    return longest_s


def run() -> dict[str, float]:
    """Return the medians."""
    return {
        f"body_{name}_stall_ms": statistics.median(asyncio.run(measure(body)) for _ in range(ROUNDS)) * 1e3
        for name, body in bodies().items()
    }


if __name__ == "__main__":
    for name, value in run().items():
        print(f"{name:32} {value:.1f}")
