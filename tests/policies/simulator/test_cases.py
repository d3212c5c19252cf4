"""Simulations as values: they repeat, what they hold follows from traffic, and the search finds the edge."""

import random
from dataclasses import replace
from math import ceil

import pytest

from policies.simulator.agents import HitBucket
from policies.simulator.cases import Agents, Recorded, SimulationCase, pace_s, quantiles, run_case, search_rate
from policies.simulator.topologies import FleetCounts, build_fleet
from policies.simulator.trace import Row
from tests.policies.simulator.parts import PARTS, RULES

AGENTS = Agents(requests=120, prompt_tokens=20_000, output_tokens=200)
FLEET = build_fleet("pdd", PARTS, FleetCounts(2, 1, 2))


def test_a_case_repeats_with_its_seed() -> None:
    """Same seed, same result; another seed, another one."""
    case = SimulationCase("x", FLEET, RULES, AGENTS, 4.0)
    results = [run_case(case, random.Random(seed)) for seed in (1, 1, 2)]
    assert results[0] == results[1]
    assert results[0] != results[2]
    assert results[0].report.requests == 108
    assert len(results[0].ttft_s) == 101
    assert results[0].samples


def test_fleets_of_the_size_that_is_wanted_keep_their_promises() -> None:
    """One P and one MD are too few; sized twice by what the gateway wants there are as many as needed, and no more."""
    parts = replace(PARTS, line=replace(PARTS.line, rate_bytes_per_s=2e10))
    counts, good = FleetCounts(1, 1, 1), []
    for _ in range(3):
        case = SimulationCase("x", build_fleet("pdd", parts, counts), RULES, replace(AGENTS, requests=400), 30.0)
        result = run_case(case, random.Random(1))
        good.append(result.report.good)
        counts = FleetCounts(*(max(1, ceil(result.wanted[role])) for role in ("P", "RLD", "MD")))
    assert good[0] < 0.1
    assert good[-1] == 1.0
    assert counts == FleetCounts(3, 1, 2)


def test_a_closed_loop_asks_as_often_as_told() -> None:
    """So many agents, so many requests, and never more at once than agents."""
    traffic = Agents(requests=60, prompt_tokens=5_000, output_tokens=50, running=4, pause_s=0.5)
    result = run_case(SimulationCase("x", FLEET, RULES, traffic, 1.0), random.Random(1))
    assert result.report.requests == 54
    assert result.report.ttft.p99_s < 1.0


def test_a_recorded_trace_keeps_its_rows() -> None:
    """All rows count, at the pace asked for; what was sent before is the workload's hit."""
    rows = tuple(Row(float(at), 1000, 10, (0, 1, 100 + at)) for at in range(20))
    traffic = Recorded(rows, 400)
    assert traffic.rate_per_s == pytest.approx(20 / 19)
    result = run_case(SimulationCase("x", FLEET, RULES, traffic, 10.0), random.Random(1))
    assert result.report.requests == 20
    load = traffic.workload(RULES)
    assert load.prompt_tokens == 1000
    assert load.uncached_tokens == pytest.approx((1000 + 19 * 200) / 20)
    assert load.itl_s == pace_s(RULES, 10) == pytest.approx(2.5)


def test_the_agents_workload_is_what_they_send() -> None:
    """The mean of what is not cached follows from the hits and the blocks' size."""
    traffic = Agents(prompt_tokens=10_000, hits=(HitBucket(0.9, 0.9, 1.0),), block_tokens=100)
    assert traffic.workload(RULES).uncached_tokens == pytest.approx(1_050)


def test_quantiles() -> None:
    """The ends are the extremes; nothing has none."""
    points = quantiles([3.0, 1.0, 2.0])
    assert (points[0], points[50], points[100]) == (1.0, 2.0, 3.0)
    assert quantiles([]) == ()


@pytest.mark.parametrize("edge", [0.5, 3.0, 10.0, 40.0])
def test_the_search_finds_the_edge(edge: float) -> None:
    """Wherever it begins, it ends just below the highest rate that is good."""
    found = search_rate(lambda rate: 1.0 if rate <= edge else 0.0, 10.0)
    assert edge * 0.97 <= found <= edge


def test_the_search_gives_up_where_nothing_is_good() -> None:
    """A fleet that keeps no promise at any rate serves nothing."""
    assert search_rate(lambda rate: 0.0, 10.0) == 0.0
