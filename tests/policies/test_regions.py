"""Region pinning: a tenant's KV and tokens stay where its rules say."""

import random
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.plans import Direct, PassThrough, Relay
from policies.route import choose_plan
from policies.rules import Rules
from policies.types import Facts, Hit, NoInstance, Role, Snapshot
from tests.policies.build import M1, P1, R1, cases, decide, facts, instance, link, placed, rules, snapshot

A = rules(regions=["a"])
HOME = instance("m2", Role.MD, "a")


def test_relay_instances_end_answers_where_the_regions_have_no_main() -> None:
    """Pinned to a region without MD: P, then an RLD in MD's place; no link, and the alignment is not told."""
    decision = decide(facts(), given=A)
    assert decision.plan == Direct("p1", "r1", "region_pinned")
    assert decision.stands_in and decision.estimate is None
    assert placed(decision, Role.MD).rejected == {"m1": "region_pinned"}


def test_main_inside_the_regions_is_used() -> None:
    """Where the regions have an MD, it and not the nearer-by-cache one elsewhere makes the answer."""
    request = facts(hits={"p1": Hit(0), "m1": Hit(20_000), "m2": Hit(0)})
    decision = decide(request, snapshot(P1, R1, M1, HOME), A)
    assert decision.plan == Direct("p1", "m2", "same_region") and not decision.stands_in


def test_a_main_that_is_down_is_waited_for() -> None:
    """An MD in the regions that does not answer is one all the same: RLD begins, and the answer moves there."""
    decision = decide(facts(), snapshot(P1, R1, M1, replace(HOME, healthy=False)), A)
    assert decision.plan == Relay("p1", "r1", "m2", "main_down")
    draining = decide(facts(), snapshot(P1, R1, M1, replace(HOME, draining=True)), A)
    assert draining.plan == Direct("p1", "r1", "region_pinned")


def test_several_regions_work_as_one_fleet() -> None:
    """Regions that are both allowed relay over their link, and a third one is never used."""
    seen = snapshot(P1, R1, M1, instance("p3", Role.P, "c"), links=(link(), link("c", "b", rate_bytes_per_s=1e12)))
    assert decide(facts(), seen, rules(regions=["a", "b"])).plan == Relay("p1", "r1", "m1", "wan_slow", ("a", "b"))


def test_unsplittable_requests_stay_too() -> None:
    """Who cannot be split gets one engine of the region alone, with or without a prefill leg."""
    assert decide(facts(unsplittable="structured_output"), given=A).plan == Direct(
        "p1", "r1", "structured_output", classic=True
    )
    whole = decide(facts(), snapshot(prefix_cache_effective=False), A)
    assert whole.plan == PassThrough("r1", "prefix_cache_ineffective")
    assert decide(facts(), snapshot(R1, M1), A).plan == PassThrough("r1", "no_prefill")


@pytest.mark.parametrize("seen", [snapshot(P1, M1), snapshot(P1, replace(R1, healthy=False), M1)])
def test_nobody_in_the_regions_is_said(seen: Snapshot) -> None:
    """With no decode instance in the regions the request is refused: it does not go elsewhere."""
    with pytest.raises(NoInstance) as refused:
        decide(facts(), seen, A)
    assert refused.value.role is Role.MD
    assert refused.value.reason in {"region_pinned", "unhealthy"}


@settings(max_examples=100)
@given(case=cases(), regions=st.sets(st.sampled_from("abc"), min_size=1))
def test_no_plan_leaves_the_regions(case: tuple[Facts, Snapshot, Rules, random.Random], regions: set[str]) -> None:
    """Whatever the state, every instance and both ends of the link of a plan are in the tenant's regions."""
    request, seen, given_rules, rng = case
    try:
        decision = choose_plan(request, seen, msgspec.structs.replace(given_rules, regions=tuple(regions)), rng)
    except NoInstance:
        return
    plan = decision.plan
    where = {view.id: view.region for view in seen.instances}
    used = {where[name] for name in (plan.prefill, plan.relay, plan.main) if name is not None}
    assert used | set(plan.link or ()) <= regions
    if decision.stands_in:
        assert plan.kind in ("direct", "passthrough")
