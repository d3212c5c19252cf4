"""What the whole gateway costs, side by side: each plan of ours, a raw asyncio copy, and nginx where it is installed.

All stand before one scripted engine and are asked by one client, in turns, round after round. What counts is the CPU
time of a gateway's own processes, so a busy machine moves it little. ``request_us``: a chat of two tokens, streamed.
``chunk_us``: each further token of a stream at reading pace, 40 a second. ``repeated_64k_ms``: a prompt of 64K tokens
that was asked before.
"""

import asyncio
import json
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

import uvloop

from tests.bench.whole.client import MARK, ask
from tests.bench.whole.engine import AT_ONCE_TOKENS, MODEL
from tests.bench.whole.plans import Bench, Measured, make_prompt, open_bench
from tests.bench.whole.scale import check, measure_overload, measure_workers

PLANS = ("upstream", "passthrough", "direct", "relay")
ROUNDS = 3
REQUESTS, REQUEST_STREAMS = 150, 8
CHUNKS, CHUNK_STREAMS = 100, 30
LONG_TOKENS, LONG_REQUESTS = 65_536, 8
SHORT_PROMPT = "What does the quick brown fox do, and what does the lazy dog say to that?"
PAIRS = {
    "passthrough_request_to_raw": ("request_us", "passthrough", "raw"),
    "passthrough_chunk_to_raw": ("chunk_us", "passthrough", "raw"),
    "relay_chunk_to_passthrough": ("chunk_us", "relay", "passthrough"),
}


def chat(model: str, prompt: str, tokens: int) -> bytes:
    """Return the body of a streamed chat."""
    messages = [{"role": "user", "content": prompt}]
    return json.dumps({"model": model, "messages": messages, "max_tokens": tokens, "stream": True}).encode()


async def cost_us(gateway: Measured, body: bytes, streams: int, wanted: int, ramp_s: float = 0.0) -> float:
    """Return the CPU of one answer."""
    before = gateway.cpu_us()
    check(await ask(gateway.port, body, streams, wanted, ramp_s))
    return (gateway.cpu_us() - before) / wanted


async def measure(gateway: Measured, long_prompt: str) -> dict[str, float]:
    """Return the figures of one round."""
    short = f"{MARK} {SHORT_PROMPT}"
    request_us = await cost_us(gateway, chat(gateway.model, short, AT_ONCE_TOKENS), REQUEST_STREAMS, REQUESTS)
    paced = chat(gateway.model, short, AT_ONCE_TOKENS + CHUNKS)
    paced_us = await cost_us(gateway, paced, CHUNK_STREAMS, CHUNK_STREAMS, 1.0)
    repeated = chat(gateway.model, long_prompt, AT_ONCE_TOKENS)
    await cost_us(gateway, repeated, 1, 1)
    repeated_us = await cost_us(gateway, repeated, 2, LONG_REQUESTS)
    return {
        "request_us": request_us,
        "chunk_us": (paced_us - request_us) / CHUNKS,
        "repeated_64k_ms": repeated_us / 1000,
    }


async def open_gateways(bench: Bench) -> dict[str, Measured | None]:
    """Start all that is compared, and warm each up."""
    gateways: dict[str, Measured | None] = {"raw": await bench.open_raw(), "nginx": await bench.open_nginx()}
    for number, plan in enumerate(PLANS):
        gateways[plan] = await bench.open_plan(plan, number)
    for gateway in gateways.values():
        if gateway is not None:
            await ask(gateway.port, chat(gateway.model, f"{MARK} Hello", AT_ONCE_TOKENS), 4, 20)
    return gateways


async def compare(bench: Bench) -> dict[str, Any]:
    """Every gateway in turn, round by round; medians."""
    gateways = await open_gateways(bench)
    long_prompt = await asyncio.to_thread(make_prompt, bench.model_dir, LONG_TOKENS)
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in gateways}
    for _ in range(ROUNDS):
        for name, gateway in gateways.items():
            if gateway is not None:
                rounds[name].append(await measure(gateway, long_prompt))
                print(name, {key: round(value, 1) for key, value in rounds[name][-1].items()}, flush=True)
    figures: dict[str, Any] = {
        name: {key: statistics.median(one[key] for one in found) for key in found[0]} if found else None
        for name, found in rounds.items()
    }
    ratios = {
        name: statistics.median(one[key] / other[key] for one, other in zip(rounds[mine], rounds[theirs], strict=True))
        for name, (key, mine, theirs) in PAIRS.items()
    }
    found = {"gateway": figures, "ratios": ratios} | await measure_scale(bench, gateways["passthrough"], figures)
    if figures["nginx"] is None:
        found["reasons"]["gateway.nginx"] = "nginx is not installed"
    return found


async def measure_scale(bench: Bench, passthrough: Measured | None, figures: dict[str, Any]) -> dict[str, Any]:
    """Measure several workers and overload; not on a machine whose processors others have."""
    assert passthrough is not None
    cores, load_average = os.cpu_count() or 1, os.getloadavg()[0]
    found: dict[str, Any] = {"workers_2_speedup": None, "overload_ttft_p99_ratio": None, "reasons": {}}
    busy = f"load average {load_average:.1f} on {cores} cores"
    prompt = f"{MARK} {SHORT_PROMPT}"
    found["workers_2_speedup"] = await measure_workers(bench, chat(MODEL, prompt, AT_ONCE_TOKENS))
    if load_average > 2 * cores:
        found["reasons"]["workers_2_speedup"] = f"{busy}: less than it would be on idle ones"
        found["reasons"]["overload_ttft_p99_ratio"] = f"{busy}: the gateway would be late for want of a processor"
    else:
        body = chat(MODEL, prompt, AT_ONCE_TOKENS + CHUNKS)
        chunk_us = figures["passthrough"]["chunk_us"]
        found["overload_ttft_p99_ratio"] = await measure_overload(passthrough, body, chunk_us)
    return found


async def measure_all() -> dict[str, Any]:
    """Measure with everything in one folder that goes again."""
    with tempfile.TemporaryDirectory() as folder:
        async with open_bench(Path(folder)) as bench:
            return await compare(bench)


def run() -> dict[str, Any]:
    """Measure, print and return the figures."""
    load_before = os.getloadavg()[0]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        figures = runner.run(measure_all())
    figures["machine"] = {"cores": os.cpu_count(), "load_average": load_before}
    return figures


if __name__ == "__main__":
    run()
