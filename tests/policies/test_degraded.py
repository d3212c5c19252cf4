"""Plans while parts of the fleet are away."""

from dataclasses import replace
from typing import Any

import pytest

from policies.plans import PassThrough, Relay
from policies.types import InstanceView, NoInstance, Role
from tests.policies.build import M1, P1, R1, decide, facts, instance, link, rules, snapshot

ROUTE = ("a", "b")
DOWN = replace(M1, healthy=False)
CUT = link(up=False)
VAIN = link(up=False, trusted=False)


def test_a_dead_main_is_waited_for_on_relay() -> None:
    """While no MD is up, a request starts on RLD with the MD that should come back."""
    assert decide(facts(), snapshot(P1, R1, DOWN)).plan == Relay("p1", "r1", "m1", "main_down", ROUTE)


def test_a_cut_link_is_waited_for_on_relay() -> None:
    """While the link is cut, a request starts on RLD."""
    assert decide(facts(), snapshot(links=(CUT,))).plan == Relay("p1", "r1", "m1", "link_down", ROUTE)


def test_a_link_whose_kv_is_not_used_is_not_waited_for() -> None:
    """Where MD does not use the KV that crosses, RLD would never be relieved in earnest: MD does all."""
    assert decide(facts(), snapshot(links=(VAIN,))).plan == PassThrough("m1", "kv_unread")


@pytest.mark.parametrize("new", [P1, M1])
def test_an_engine_without_a_verdict_shares_no_answer(new: InstanceView) -> None:
    """While the only P or the only MD waits for its first canary MD does all; others of its role are used instead."""
    apart = replace(new, fingerprint=f"?{new.id}", judged=False)
    views = {one.id: one for one in (P1, R1, M1)} | {new.id: apart}
    assert decide(facts(), snapshot(*views.values())).plan == PassThrough("m1", "first_canary")
    spare = replace(new, id="spare")
    assert "spare" in decide(facts(), snapshot(*views.values(), spare)).plan.instances


def test_another_link_is_used_instead() -> None:
    """A link whose KV is not used keeps no MD from being fed over another."""
    far = replace(M1, id="far", region="c")
    decision = decide(facts(), snapshot(P1, R1, M1, far, links=(VAIN, link("a", "c"))))
    assert (decision.plan.main, decision.plan.link) == ("far", ("a", "c"))


def test_a_dead_main_is_waited_for_whatever_becomes_of_its_kv() -> None:
    """While no MD is up RLD answers, also where MD will have to compute the prompt."""
    assert decide(facts(), snapshot(P1, R1, DOWN, links=(VAIN,))).plan == Relay("p1", "r1", "m1", "main_down", ROUTE)


def test_a_dead_main_beside_prefill_needs_no_link() -> None:
    """An MD in P's own region is waited for without a link."""
    near = replace(DOWN, region="a")
    assert decide(facts(), snapshot(P1, R1, near, links=())).plan == Relay("p1", "r1", "m1", "main_down")


def test_without_a_relay_main_does_all() -> None:
    """While the link is cut and no RLD is free, MD prefills itself."""
    busy = replace(R1, running=256)
    assert decide(facts(), snapshot(P1, busy, M1, links=(CUT,))).plan == PassThrough("m1", "no_link")


@pytest.mark.parametrize("change", [{"links": ()}, {"links": (link("a", "c"),)}])
def test_a_link_that_does_not_exist_is_not_waited_for(change: dict[str, Any]) -> None:
    """Without any link to MD's region RLD would never be relieved: MD does all."""
    assert decide(facts(), snapshot(**change)).plan == PassThrough("m1", "no_link")


def test_fingerprints_apart_mean_no_link() -> None:
    """An MD that no P can feed does everything itself."""
    other = replace(M1, fingerprint="v2")
    assert decide(facts(), snapshot(P1, R1, other)).plan == PassThrough("m1", "no_link")


def test_without_prefill_main_does_all() -> None:
    """With every P away MD prefills itself."""
    assert decide(facts(), snapshot(replace(P1, healthy=False), R1, M1)).plan == PassThrough("m1", "no_prefill")


def test_an_unsplittable_request_does_not_wait_on_relay() -> None:
    """What must not be split passes to MD while the link is cut, and fails while no MD is up."""
    request = facts(unsplittable="penalty_state")
    assert decide(request, snapshot(links=(CUT,))).plan == PassThrough("m1", "no_link")
    with pytest.raises(NoInstance):
        decide(request, snapshot(P1, R1, DOWN))


def test_rules_without_relay_do_not_wait_on_relay() -> None:
    """Where RLD is not allowed it is not used in an emergency either."""
    assert decide(facts(), snapshot(links=(CUT,)), rules(pipelines=["direct"])).plan == PassThrough("m1", "no_link")


def test_the_waiting_pair_matches() -> None:
    """Among several sites, P, RLD and the MD that is waited for share fingerprint and region link."""
    lost = instance("p0", Role.P, region="z")
    crowded = instance("p2", Role.P, fingerprint="v2")
    twin = replace(P1, id="p3")
    other = replace(DOWN, id="m2", fingerprint="v2")
    decision = decide(facts(), snapshot(lost, crowded, P1, twin, R1, other, DOWN), rng=0.99)
    assert decision.plan == Relay("p3", "r1", "m1", "main_down", ROUTE)


@pytest.mark.parametrize(
    ("mains", "reason"),
    [
        ([], "none_configured"),
        ([replace(M1, draining=True)], "draining"),
        ([replace(M1, max_model_len=100)], "too_long"),
        ([replace(M1, draining=True), replace(M1, id="m2", healthy=False)], "unhealthy"),
    ],
)
def test_nobody_left(mains: list[Any], reason: str) -> None:
    """With neither MD nor RLD the error names the role and the reason that may pass soonest."""
    with pytest.raises(NoInstance) as caught:
        decide(facts(), snapshot(P1, *mains))
    assert (caught.value.role, caught.value.reason) == (Role.MD, reason)
    assert str(caught.value) == f"no MD instance: {reason}"


def test_nobody_left_for_a_whole_request() -> None:
    """A request that passes through fails without an MD even where an RLD is up."""
    with pytest.raises(NoInstance):
        decide(facts(), snapshot(P1, R1, DOWN, prefix_cache_effective=False))
