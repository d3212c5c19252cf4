"""When P itself writes on in RLD's place, and when it leaves the answer to an RLD."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings

from policies.fused import LEAVE, must_leave
from policies.plans import Direct, Relay, Singular
from policies.route import choose_plan
from policies.rules import RelayRules
from policies.types import Alignment, Facts, Hit, NoInstance, SingularUse, Snapshot
from tests.policies.build import M1, P1, R1, cases, decide, facts, link, rules, snapshot

ROUTE = ("a", "b")
AUTO: dict[str, Any] = {"fused": "auto", "fused_running_max": 3}


def test_p_does_not_go_on_unless_a_rule_says_so() -> None:
    """By default P stops at its token, however idle it is."""
    assert decide(facts()).plan == Relay("p1", "r1", "m1", "wan_slow", ROUTE)


@pytest.mark.parametrize(
    ("load", "fused"),
    [({}, True), ({"running": 2}, True), ({"running": 3}, False), ({"running": 1, "waiting": 2}, False)],
)
def test_auto_looks_at_what_runs_and_waits_in_p(load: dict[str, int], fused: bool) -> None:
    """P goes on while it has fewer requests than the bound; with as many an RLD does, as ever."""
    decision = decide(facts(), snapshot(replace(P1, **load), R1, M1), rules(relay=AUTO))  # type: ignore[arg-type]
    assert decision.plan == Relay("p1", "r1", "m1", "fused" if fused else "wan_slow", ROUTE, fused=fused)
    assert decision.plan.writer == ("p1" if fused else "r1")


def test_auto_leaves_full_kv_memory_alone() -> None:
    """A P whose KV memory is full keeps no answers in it."""
    seen = snapshot(replace(P1, kv_usage=0.99), R1, M1)
    assert not decide(facts(), seen, rules(relay=AUTO)).plan.fused
    assert decide(facts(), seen, rules(relay={"fused": "always"})).plan.fused


def test_always_does_not_look() -> None:
    """However much runs in P, it goes on."""
    seen = snapshot(replace(P1, running=200), R1, M1)
    assert decide(facts(), seen, rules(relay={"fused": "always"})).plan.fused


@pytest.mark.parametrize("relays", [(), (replace(R1, running=256),)], ids=["none", "overloaded"])
@pytest.mark.parametrize(
    ("relay", "plan"),
    [
        (AUTO, Relay("p1", None, "m1", "fused", ROUTE, fused=True)),
        ({}, None),
    ],
    ids=["auto", "never"],
)
def test_it_needs_no_rld(relays: tuple[Any, ...], relay: dict[str, Any], plan: Relay | None) -> None:
    """Where no RLD can take the request P writes on all the same; without the rule it goes direct."""
    chosen = decide(facts(), snapshot(P1, *relays, M1), rules(relay=relay)).plan
    assert chosen == plan or (plan is None and isinstance(chosen, Direct))


def test_kv_that_only_leaves_p_at_its_end_is_not_kept_waiting() -> None:
    """Where a transfer begins with P's end, as where engines lend KV, P ends at its token."""
    seen = snapshot(links=(link(overlaps_prefill=False),))
    assert not decide(facts(), seen, rules(relay={"fused": "always"})).plan.fused


def test_rld_reads_ps_memory_where_engines_lend() -> None:
    """NIXL to RLD beside a bridge to MD is the plan's property; a P that writes on itself lends nothing."""
    seen = snapshot(links=(link(lends=True),))
    assert decide(facts(), seen).plan == Relay("p1", "r1", "m1", "wan_slow", ROUTE, lends=True)
    assert decide(facts(), seen, rules(relay=AUTO)).plan == Relay("p1", "r1", "m1", "fused", ROUTE, fused=True)
    away = snapshot(P1, R1, replace(M1, healthy=False), links=(link(lends=True),))
    assert decide(facts(), away).plan == Relay("p1", "r1", "m1", "main_down", ROUTE, lends=True)
    assert not decide(facts(hits={"m1": Hit(20_000)}), seen).plan.lends


def test_p_does_not_stand_in_for_a_main_that_is_away() -> None:
    """Who writes until an MD is back may write for long: that is RLD's part."""
    seen = snapshot(P1, R1, replace(M1, healthy=False))
    assert decide(facts(), seen, rules(relay={"fused": "always"})).plan == Relay("p1", "r1", "m1", "main_down", ROUTE)


def test_a_singular_answer_is_still_rlds() -> None:
    """The singular plan is not touched; what it is refused for loudly is said of a fused relay, too."""
    cold = facts(50_000, max_output_tokens=100)
    spare = SingularUse(used=0.0, total=1000.0)
    given_rules = rules(relay=AUTO)
    assert decide(cold, snapshot(singular=spare), given_rules).plan == Singular("p1", "r1", "singular")
    behind = snapshot(singular=spare, alignment=Alignment(1000.0, 900.0, 100.0))
    assert decide(cold, behind, given_rules).plan == Relay("p1", "r1", "m1", "singular_misaligned", ROUTE, fused=True)


@pytest.mark.parametrize(("running", "leaves"), [(1, False), (3 * LEAVE, False), (3 * LEAVE + 1, True)])
def test_a_busy_p_is_left(running: int, leaves: bool) -> None:
    """Only well above the bound that it is chosen by, so that one more prompt does not empty it of answers."""
    crowded = replace(P1, running=running)
    assert must_leave(crowded, R1, RelayRules(fused="auto", fused_running_max=3)) is leaves
    assert not must_leave(crowded, R1, RelayRules(fused="always", fused_running_max=3))


@pytest.mark.parametrize("relay", [None, replace(R1, running=256)], ids=["none", "full"])
def test_nobody_is_left_to_nobody(relay: Any) -> None:
    """A busy P goes on where no RLD has room."""
    assert not must_leave(replace(P1, running=100), relay, RelayRules(fused="auto", fused_running_max=3))


@settings(max_examples=150)
@given(case=cases())
def test_a_fused_plan_is_a_relay_that_moves_kv(case: tuple[Facts, Snapshot, Any, Any]) -> None:
    """Whatever the state: fused is a relay over a link that overlaps, as the rule allows, and ends at MD."""
    request, seen, given_rules, rng = case
    try:
        decision = choose_plan(request, seen, given_rules, rng)
    except NoInstance:
        return
    plan = decision.plan
    if plan.fused:
        assert isinstance(plan, Relay) and plan.link is not None and not plan.classic
        assert given_rules.relay.fused != "never" and "relay" in given_rules.pipelines
        assert request.unsplittable is None
    elif isinstance(plan, Relay):
        assert plan.relay is not None
