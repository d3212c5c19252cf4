"""What more workers carry, and what becomes of those who come when a process is full."""

import statistics

from tests.bench.whole.client import Load, ask
from tests.bench.whole.engine import GAP_S
from tests.bench.whole.plans import Bench, Measured

ROUNDS = 3
REQUESTS, STREAMS = 400, 32
QUIET_STREAMS = 20


def check(load: Load, may_refuse: bool = False) -> Load:
    """Every answer has come whole."""
    if load.failures or (load.refused and not may_refuse):
        raise SystemExit(f"{load.done} of {load.wanted} answers, {load.refused} refused: {load.failures[:1]}")
    return load


async def measure_workers(bench: Bench, body: bytes) -> float:
    """Return how many times as many requests a second two workers answer as one does."""
    one = await bench.open_plan("passthrough", 8)
    two = await bench.open_plan("passthrough", 9, "--workers", "2")
    ratios = []
    for _ in range(ROUNDS):
        rates = []
        for gateway in (one, two):
            check(await ask(gateway.port, body, STREAMS, STREAMS))
            load = check(await ask(gateway.port, body, STREAMS, REQUESTS))
            rates.append(load.done / load.elapsed_s)
        ratios.append(rates[1] / rates[0])
        print("requests a second, one worker and two:", [round(rate) for rate in rates], flush=True)
    return statistics.median(ratios)


async def measure_overload(gateway: Measured, body: bytes, chunk_us: float) -> float:
    """Return how much later first tokens come to those who are let in at twice what the process can carry."""
    quiet = check(await ask(gateway.port, body, QUIET_STREAMS, QUIET_STREAMS, 1.0))
    streams = int(2 * GAP_S / (chunk_us / 1e6))
    full = check(await ask(gateway.port, body, streams, 3 * streams, 5.0), may_refuse=True)
    print(f"{streams} streams: {full.done} answers, {full.refused} refused", flush=True)
    return full.ttft_at(0.99) / quiet.ttft_at(0.99)
