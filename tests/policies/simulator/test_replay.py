"""Replays: what holds for any traffic, and what the pipelines are for."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.rules import parse_rules
from policies.simulator.agents import AgentTraffic
from policies.simulator.engine_model import EngineModel, as_decoder
from policies.simulator.fleet import Fleet, Member, WanLine
from policies.simulator.replay import Replay
from policies.simulator.report import Report
from policies.simulator.trace import Row
from policies.types import Role
from tests.policies.simulator.fleets import replay

PREFILL = EngineModel(token_s=0.00008, pair_s=1e-9, weights_s=0.014, kv_read_s=1e-8, budget_tokens=8192, max_running=64)
DECODE = as_decoder(EngineModel(token_s=0.00008, pair_s=1e-9, weights_s=0.014, kv_read_s=4e-9, cost=1.25))
TWO_CITIES = Fleet(
    members=(
        *(Member(f"p{index}", Role.P, "a", PREFILL) for index in range(4)),
        Member("r0", Role.RLD, "a", PREFILL),
        *(Member(f"m{index}", Role.MD, "b", DECODE) for index in range(3)),
    ),
    lines=(WanLine("a", "b", rate_bytes_per_s=4e8, rtt_s=0.03, cost=0.5),),
)
AGENTS = AgentTraffic(random.Random(7), sessions=60, prompt_tokens=40_000)
WARM = AGENTS.contexts()
ROWS = AGENTS.rows(300, rate_per_s=1.4)


def run(**sections: object) -> Report:
    """Replay the agent traffic between two cities under rules given as plain sections."""
    return Replay(TWO_CITIES, parse_rules(sections), random.Random(2), WARM).run(ROWS)


def test_relay_takes_the_wan_out_of_the_first_token() -> None:
    """Against the naive way the mean wait for the first token falls by more than 40 %, at the same bytes."""
    naive = run(pipelines=["direct"], direct_classic=True)
    relay = run(direct_wan_bound_s=0.25)
    assert relay.ttft.mean_s < 0.6 * naive.ttft.mean_s
    assert relay.wan_bytes <= 1.05 * naive.wan_bytes
    assert relay.gap.p99_s < 0.5


def test_relay_takes_the_wan_out_of_the_answer() -> None:
    """Against Direct without a relay the long silences after the first token are gone."""
    direct = run(pipelines=["direct"])
    relay = run()
    assert relay.gap.p99_s < 0.3 * direct.gap.p99_s
    assert 0.0 < relay.token_share["RLD"] < 0.15


def test_replays_repeat() -> None:
    """The same rows, rules and seed give the same report."""
    rows = ROWS[:60]
    reports = [Replay(TWO_CITIES, parse_rules({}), random.Random(5)).run(rows) for _ in range(2)]
    assert reports[0] == reports[1]


@settings(max_examples=60)
@given(
    shapes=st.lists(
        st.tuples(st.floats(0, 5), st.integers(1, 3000), st.integers(1, 300), st.integers(0, 3)), max_size=25
    ),
    mode=st.sampled_from(["auto", "one_shot", "catch_up"]),
    pipelines=st.sampled_from([["direct", "relay"], ["direct"], ["relay"]]),
    classic=st.booleans(),
)
def test_every_answer_ends_once_with_all_its_tokens(
    shapes: list[tuple[float, int, int, int]], mode: str, pipelines: list[str], classic: bool
) -> None:
    """Whatever comes, each request ends, its tokens by role add up, and singular ones keep to the budget."""
    rows = [
        Row(at_s, prompt, output, tuple(range(path * 100, path * 100 + -(-prompt // 100))))
        for at_s, prompt, output, path in shapes
    ]
    simulation, report = replay(
        rows,
        handoff={"mode": mode},
        pipelines=pipelines,
        direct_classic=classic,
        singular={"min_uncached_tokens": 500, "max_hit": 1.0, "budget": 0.1},
        output_length={"min_samples": 1},
    )
    assert report.requests == len(rows)
    for outcome in simulation.outcomes:
        assert outcome.end_s is not None
        assert outcome.first_s is not None
        assert outcome.row.at_s < outcome.first_s
        made = outcome.prefill_tokens + outcome.relay_tokens + outcome.main_tokens
        assert made == outcome.row.output_tokens
        assert outcome.gap_s >= 0
    singular = sum(outcome.kind == "singular" for outcome in simulation.outcomes)
    assert singular <= 0.1 * len(rows)
    assert sum(report.token_share.values()) == pytest.approx(1.0 if rows else 0.0)
