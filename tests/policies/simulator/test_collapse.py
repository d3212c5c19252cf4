"""The feedback loop that the alignment guard is there to break, and what must hold of any simulation."""

import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from policies.rules import parse_rules
from policies.simulator.agents import AgentTraffic, HitBucket
from policies.simulator.engine_model import EngineModel, as_decoder
from policies.simulator.fleet import Fleet, Member, WanLine
from policies.simulator.parts import BlockCache
from policies.simulator.replay import Replay
from policies.simulator.report import Report
from policies.types import Role
from tests.policies.simulator.fleets import fleet, replay, row

ENGINE = EngineModel(token_s=0.00002, weights_s=0.02, kv_read_s=1e-8, kv_tokens=2_000_000, max_running=16)


def drift(**alignment: Any) -> tuple[Report, float]:
    """Short answers to long prompts over a thin line; the report, and how far MD's hits fell behind P's in the end.

    Nothing but the guard keeps requests from ending at RLD: they need not be cold, and the budget is at its widest.
    """
    members = [Member(f"p{number}", Role.P, "a", ENGINE) for number in range(3)]
    members += [Member("r0", Role.RLD, "a", as_decoder(ENGINE))]
    members += [Member(f"m{number}", Role.MD, "b", as_decoder(ENGINE)) for number in range(2)]
    line = WanLine("a", "b", rate_bytes_per_s=2e8)
    agents = AgentTraffic(random.Random(3), (HitBucket(0.5, 0.95, 1.0),), 20_000, 20, sessions=25, output_spread=0.5)
    warm = agents.contexts()
    rows = agents.rows(500, 1.2)
    rules = {
        "singular": {"min_uncached_tokens": 1, "max_hit": 1.0, "budget": 0.25, "budget_window_s": 60},
        "alignment": {"window_s": 60, **alignment},
        "direct_wan_bound_s": 0.1,
    }
    simulation = Replay(
        Fleet(tuple(members), (line,), kv_bytes_per_token=20_000), parse_rules(rules), random.Random(1), warm
    )
    report = simulation.run(rows)
    late = simulation.outcomes[-150:]
    prompts = sum(one.row.prompt_tokens for one in late)
    return report, sum(one.prefill_hit_tokens - one.main_hit_tokens for one in late) / prompts


def test_without_the_guard_md_falls_behind() -> None:
    """With the guard MD's hits stay near P's; without it more and more requests end at RLD, and MD falls behind."""
    guarded, near = drift(bound=0.02)
    loose, far = drift(bound=1.0)
    assert far > 2 * near
    assert loose.singular > 1.5 * guarded.singular
    assert loose.main_hit < guarded.main_hit - 0.05
    assert guarded.prefill_hit == loose.prefill_hit


def test_answers_beyond_the_bound_of_aligning_are_dropped() -> None:
    """Where too many answers that RLD ended wait for their KV, the next one's transfer is stopped, and counted."""
    rows = [row(1000, 11, at_s=0.01 * number, first_block=100 * number) for number in range(5)]
    simulation, report = replay(rows, fleet(align_jobs=1), singular={"enabled": False})
    assert simulation.world.dropped == 4
    assert simulation.world.aligning == 0
    assert report.wan_bytes < 5_000_000


@settings(max_examples=15, deadline=None)
@given(
    rate=st.floats(2e5, 5e6),
    quicker=st.floats(1.5, 10),
    shapes=st.lists(st.tuples(st.integers(0, 20), st.integers(500, 3000)), min_size=1, max_size=15),
)
def test_a_faster_line_never_lowers_goodput(rate: float, quicker: float, shapes: list[tuple[int, int]]) -> None:
    """Requests of their own each, so that order changes no cache: over a faster line no fewer keep their promises."""
    rows = [row(prompt, 20, at_s=float(at), first_block=1000 * number) for number, (at, prompt) in enumerate(shapes)]
    rules: dict[str, Any] = {"slo": {"ttft_s": 2.0, "total_s": 3.0}, "pipelines": ["direct"], "direct_classic": True}
    good = []
    for one in (rate, rate * quicker):
        _, report = replay(rows, fleet(lines=(WanLine("a", "b", one, 0.02),)), **rules)
        assert report.wan_bytes == sum(prompt // 100 * 100_000 for _, prompt in shapes)
        good.append(report.good)
    assert good[1] >= good[0]


@settings(deadline=None)
@given(
    paths=st.lists(st.lists(st.integers(0, 2), max_size=6), max_size=20),
    small=st.integers(1, 8),
    more=st.integers(0, 8),
)
def test_more_memory_never_lowers_hits(paths: list[list[int]], small: int, more: int) -> None:
    """For any order of prompts a larger cache reaches at least as far into each as a smaller one."""
    caches = BlockCache(small), BlockCache(small + more)
    ids: dict[tuple[int, ...], int] = {}
    for path in paths:
        blocks = [ids.setdefault(tuple(path[: end + 1]), len(ids)) for end in range(len(path))]
        reaches = [cache.reach(blocks) for cache in caches]
        assert reaches[0] <= reaches[1]
        for cache in caches:
            cache.add(blocks)
