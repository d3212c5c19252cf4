"""What OpenTelemetry costs a request: the same gateway with a receiver named, and without, twice, in turns.

The two without differ by chance alone: what tracing costs where it is off has to show beside that. ``off_hooks_us`` is
what such a request still does for it: read its headers for a client's trace, and open and end a timeline of no trace.
"""

import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from timeit import repeat
from typing import Any

import uvloop

from gateway.telemetry.timeline import Timelines
from gateway.telemetry.trace_context import read_context
from tests.bench.bench_gateway import REQUEST_STREAMS, SHORT_PROMPT, chat, cost_us
from tests.bench.whole.client import MARK, ask
from tests.bench.whole.engine import AT_ONCE_TOKENS
from tests.bench.whole.plans import Bench, Measured, open_bench
from tests.fakes.otlp_receiver import OtlpReceiver

ROUNDS = 6
REQUESTS = 200
HOOKS = 20_000
GATEWAYS = ("off", "off_again", "on")


async def open_gateways(bench: Bench, receiver: str) -> dict[str, Measured]:
    """Start all that is compared, and warm each up."""
    options = {"on": {"otlp_endpoint": receiver}}
    gateways = {
        name: await bench.open_plan("passthrough", number, settings=options.get(name, {}))
        for number, name in enumerate(GATEWAYS)
    }
    for gateway in gateways.values():
        await ask(gateway.port, chat(gateway.model, f"{MARK} Hello", AT_ONCE_TOKENS), 4, 50)
    return gateways


async def compare(bench: Bench) -> dict[str, float]:
    """Return the CPU of a request, in microseconds, of each; medians over rounds."""
    async with OtlpReceiver() as receiver:
        gateways = await open_gateways(bench, receiver.url)
        found: dict[str, list[float]] = {name: [] for name in gateways}
        for round_ in range(ROUNDS):
            # Whoever comes first after the others pays for cold caches.
            for name in (*GATEWAYS[round_ % 3 :], *GATEWAYS[: round_ % 3]):
                gateway = gateways[name]
                body = chat(gateway.model, f"{MARK} {SHORT_PROMPT}", AT_ONCE_TOKENS)
                found[name].append(await cost_us(gateway, body, REQUEST_STREAMS, REQUESTS))
    return {f"{name}_request_us": statistics.median(each) for name, each in found.items()}


def time_hooks() -> float:
    """Return what a request does for tracing that is off, in microseconds."""
    timelines, headers = Timelines(time.monotonic), {"content-type": "application/json"}
    timeline = timelines.open("a", "m", read_context(headers))

    def hooks() -> None:
        read_context(headers)
        timeline.end()

    return min(repeat(hooks, number=HOOKS, repeat=5)) / HOOKS * 1e6


async def measure_all() -> dict[str, float]:
    """Measure with everything in one folder that goes again."""
    with tempfile.TemporaryDirectory() as folder:
        async with open_bench(Path(folder)) as bench:
            return await compare(bench)


def run() -> dict[str, Any]:
    """Measure and return the figures."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        figures = runner.run(measure_all())
    off_us, hooks_us = figures["off_request_us"], time_hooks()
    return {
        "tracing": figures
        | {
            "off_to_off": figures["off_again_request_us"] / off_us,
            "on_to_off": figures["on_request_us"] / off_us,
            "off_hooks_us": hooks_us,
            "off_hooks_share": hooks_us / off_us,
        }
    }
