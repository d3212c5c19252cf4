"""Speed of the simulator: the 12,031 requests of Mooncake's conversation trace (or as many made up) over 40 instances.

Prints CPU seconds and the peak memory of the process, how they grow with ten times the requests, and a slice of 1,000
instances from which the whole is stated.
"""

import random
import resource
import time
from dataclasses import replace
from pathlib import Path

from gateway.planning.scenario import load_scenario
from gateway.planning.traffic import read_traffic
from policies.simulator.cases import Agents, Recorded, SimulationCase, run_case
from policies.simulator.topologies import FleetCounts, build_fleet

TRACE = Path(__file__).resolve().parents[3] / "shared" / "traces" / "conversation_trace.jsonl"
REQUESTS = 12_031
TIMES = 10
SLICE = 500
"""Requests of the slice with 1,000 instances."""


def find_traffic() -> Recorded:
    """Return the trace, or made-up requests of the same number and length."""
    if TRACE.is_file():
        return read_traffic(TRACE, Agents(), 1)
    agents = Agents(REQUESTS, prompt_tokens=12_000, output_tokens=340, block_tokens=512)
    return Recorded(tuple(agents.make(random.Random(1), 3.4)[0]), 512)


def simulate_s(traffic: Recorded, counts: FleetCounts, rate_per_s: float) -> float:
    """Return the CPU seconds of one simulation."""
    scenario = load_scenario("paper")
    fleet = build_fleet("pdd", scenario.parts(), counts)
    start_s = time.process_time()
    run_case(SimulationCase("bench", fleet, scenario.rules, traffic, rate_per_s), random.Random(1))
    return time.process_time() - start_s


def repeat(traffic: Recorded, times: int) -> Recorded:
    """The same conversations again and again, one after the other, each time with blocks of their own."""
    rows, span_s = traffic.rows, traffic.rows[-1].at_s + 1 / traffic.rate_per_s
    blocks = 1 + max(block for row in rows for block in row.blocks)
    return Recorded(
        tuple(
            replace(row, at_s=row.at_s + turn * span_s, blocks=tuple([turn * blocks + block for block in row.blocks]))
            for turn in range(times)
            for row in rows
        ),
        traffic.block_tokens,
    )


def run() -> dict[str, float]:
    """Return the figures."""
    traffic = find_traffic()
    whole_s = simulate_s(traffic, FleetCounts(18, 2, 20), traffic.rate_per_s)
    memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    part = Recorded(traffic.rows[:SLICE], traffic.block_tokens)
    slice_s = simulate_s(part, FleetCounts(450, 50, 500), 25 * traffic.rate_per_s)
    long_s = simulate_s(repeat(traffic, TIMES), FleetCounts(18, 2, 20), traffic.rate_per_s)
    return {
        "simulated_requests": float(len(traffic.rows)),
        "simulate_40_instances_s": whole_s,
        "simulate_peak_memory_mb": memory_mb,
        "simulate_ten_times_s": long_s,
        "simulate_ten_times_by_linear": long_s / (TIMES * whole_s),
        "simulate_1000_instances_slice_s": slice_s,
        "simulate_1000_instances_whole_s": slice_s * len(traffic.rows) / SLICE,
    }


if __name__ == "__main__":
    print(run())
