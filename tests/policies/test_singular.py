"""The singular rule, its budget and the alignment guard."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.plans import Direct, PassThrough, Plan, Relay, Singular
from policies.rules import AlignmentRules, Rules, SingularRules
from policies.singular import (
    EarlyEnd,
    budget_used,
    count_converted,
    count_request,
    fade_factor,
    fade_use,
    is_aligned,
    observe_hits,
    refuse_singular,
    relay_finished_first,
    relay_time_s,
)
from policies.types import Alignment, Hit, SingularUse
from tests.policies.build import R1, decide, facts, instance, link, rules, snapshot

ROOM = SingularUse(used=0.0, total=1000.0)
COLD = Hit(0)
LEVEL = Alignment()
PLAN = Relay("p1", "r1", "m1", "wan_slow", ("a", "b"))


def refused(
    prompt: int = 100_000,
    hit: Hit | None = COLD,
    answer: int | None = 100,
    use: SingularUse = ROOM,
    counted: bool = False,
    alignment: Alignment = LEVEL,
    **singular: Any,
) -> str | None:
    """Apply the rule to a request that may be singular but for what is given."""
    seen = snapshot(singular=use, alignment=alignment)
    return refuse_singular(facts(prompt), hit, answer, seen, rules(singular=singular), counted)


def test_a_long_cold_prompt_with_a_short_answer_may_be_singular() -> None:
    """The rule lets pass what it was made for."""
    assert refused() is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"enabled": False}, "disabled"),
        ({"hit": None}, "hit_unknown"),
        ({"prompt": 32_767}, "short_uncached"),
        ({"prompt": 32_768}, None),
        ({"prompt": 42_767, "hit": Hit(10_000), "max_hit": 1.0}, "short_uncached"),
        ({"prompt": 42_768, "hit": Hit(10_000), "max_hit": 1.0}, None),
        ({"hit": Hit(20_000)}, None),
        ({"hit": Hit(20_001)}, "high_hit"),
        ({"hit": Hit(0, store_tokens=20_001)}, "high_hit"),
        ({"hit": Hit(1), "max_hit": 0.0}, "high_hit"),
        ({"hit": Hit(0), "max_hit": 0.0}, None),
        ({"hit": Hit(200_000), "max_hit": 1.0}, "short_uncached"),
        ({"answer": None}, "answer_unknown"),
        ({"answer": 499}, None),
        ({"answer": 500}, "long_answer"),
        ({"alignment": Alignment(1000.0, 800.0, 749.0)}, "misaligned"),
        ({"alignment": Alignment(1000.0, 800.0, 800.0)}, None),
        ({"use": SingularUse(0.0, 23.0)}, "budget_spent"),
        ({"use": SingularUse(0.0, 24.0)}, None),
        ({"use": SingularUse(0.0, 24.0), "counted": True}, "budget_spent"),
        ({"use": SingularUse(0.0, 25.0), "counted": True}, None),
        ({"use": SingularUse(1.0, 48.0)}, "budget_spent"),
        ({"budget": 0.0}, "budget_spent"),
    ],
)
def test_each_limit_and_its_edge(changes: dict[str, Any], reason: str | None) -> None:
    """POL-04: each limit refuses by its own reason, and its edge is where the rules' text says."""
    assert refused(**changes) == reason


def test_counting() -> None:
    """A request counts once; a converted one only adds to the singular ones; both fade alike."""
    limits = Rules().singular
    use = count_request(SingularUse(), True, 0.0, limits)
    use = count_request(use, False, 0.0, limits)
    assert (use.used, use.total) == (1.0, 2.0)
    use = count_converted(use, 0.0, limits)
    assert (use.used, use.total) == (2.0, 2.0)
    later = fade_use(use, limits.budget_window_s, limits)
    assert later.used == later.total == pytest.approx(2.0 * 0.3679, abs=1e-4)
    assert fade_use(later, 0.0, limits) == later


def test_the_share_of_the_budget_that_is_used() -> None:
    """It is 1 when the budget is spent, whatever has faded, and 0 where there is no budget or no request."""
    limits = SingularRules(budget=0.04, budget_window_s=100.0)
    use = SingularUse(used=2.0, total=100.0, at_s=0.0)
    assert budget_used(use, limits) == pytest.approx(0.5)
    assert budget_used(fade_use(use, 50.0, limits), limits) == pytest.approx(0.5)
    assert budget_used(SingularUse(used=4.0, total=100.0), limits) == pytest.approx(1.0)
    assert budget_used(SingularUse(), limits) == budget_used(use, SingularRules(budget=0.0)) == 0.0


def test_relay_time() -> None:
    """RLD's time is its measured time per token, or the assumed one."""
    limits = rules(singular={"assumed_itl_s": 0.5}).singular
    assert relay_time_s(10, R1, limits) == 5.0
    assert relay_time_s(10, instance("r", R1.role, itl_s=0.25), limits) == 2.5


def test_the_transfer_stops_when_relay_was_first_and_the_request_fits() -> None:
    """A request that RLD finished and that may be singular stops its transfer."""
    end = relay_finished_first(PLAN, facts(100_000), 100, snapshot(singular=ROOM), Rules())
    assert end == EarlyEnd(stop_transfer=True, reason="singular_live")


@pytest.mark.parametrize(
    ("prompt", "answer", "use", "reason"),
    [
        (20_000, 100, ROOM, "short_uncached"),
        (100_000, 500, ROOM, "long_answer"),
        (100_000, 100, SingularUse(), "budget_spent"),
    ],
)
def test_the_transfer_completes_otherwise(prompt: int, answer: int, use: SingularUse, reason: str) -> None:
    """Any other early end lets the transfer complete, and says why."""
    end = relay_finished_first(PLAN, facts(prompt), answer, snapshot(singular=use), Rules())
    assert end == EarlyEnd(stop_transfer=False, reason=reason)


def test_a_transfer_that_cannot_be_stopped_is_left_alone() -> None:
    """On a link whose transfers go on after they are closed, stopping one saves nothing, whatever the request."""
    seen = snapshot(singular=ROOM, links=(link(can_stop=False),))
    end = relay_finished_first(PLAN, facts(100_000), 100, seen, Rules())
    assert end == EarlyEnd(stop_transfer=False, reason="cannot_stop")


@pytest.mark.parametrize("plan", [Relay("p1", "r1", "m1", "x", ("b", "a")), Relay("p1", "r1", "m1", "x")])
def test_a_link_that_is_gone_forbids_nothing(plan: Relay) -> None:
    """A plan whose link is no longer known, or that has none, is judged by the request alone."""
    seen = snapshot(singular=ROOM, links=(link(can_stop=False),))
    assert relay_finished_first(plan, facts(100_000), 100, seen, Rules()).stop_transfer


@pytest.mark.parametrize(
    "plan", [Direct("p1", "m1", "x", ("a", "b")), Singular("p1", "r1", "x"), PassThrough("m1", "x")]
)
def test_only_a_relay_turns_singular(plan: Plan) -> None:
    """Where RLD stepped in for another plan, the transfer completes, whatever the request."""
    end = relay_finished_first(plan, facts(100_000), 100, snapshot(singular=ROOM), Rules())
    assert end == EarlyEnd(stop_transfer=False, reason="unplanned")


@given(
    arrivals=st.lists(
        st.tuples(st.sampled_from([0.0, 0.1, 30.0, 5000.0]), st.booleans(), st.booleans()), min_size=1, max_size=300
    ),
    budget=st.sampled_from([0.0, 0.01, 0.04, 0.25]),
    window_s=st.sampled_from([1.0, 60.0, 86_400.0]),
)
def test_the_share_never_exceeds_the_budget(
    arrivals: list[tuple[float, bool, bool]], budget: float, window_s: float
) -> None:
    """Over any sequence of requests, planned or converted live, faded and plain shares stay within the budget."""
    given_rules = rules(singular={"budget": budget, "budget_window_s": window_s, "assumed_itl_s": 0.001})
    limits, use, now_s = given_rules.singular, SingularUse(), 0.0
    singular, total = 0, 0
    for wait_s, short, ends_early in arrivals:
        now_s += wait_s
        request = facts(100_000, predicted_output_tokens=50 if short else 800)
        decision = decide(request, snapshot(singular=use, now_s=now_s), given_rules)
        is_singular = decision.plan.ends_on_relay
        use = count_request(use, is_singular, now_s, limits)
        total, singular = total + 1, singular + is_singular
        if decision.plan.kind == "relay" and ends_early:
            seen = snapshot(singular=use, now_s=now_s)
            if relay_finished_first(decision.plan, request, 50, seen, given_rules).stop_transfer:
                use = count_converted(use, now_s, limits)
                singular += 1
        assert use.used <= budget * use.total + 1e-9
        assert singular <= budget * total + 1e-9


RULES = AlignmentRules(window_s=100.0, bound=0.05)


def test_nothing_seen_is_aligned() -> None:
    """Before any request there is no gap."""
    assert Alignment().gap == 0.0
    assert is_aligned(Alignment(), RULES)


def test_the_gap_is_weighted_by_tokens() -> None:
    """A long prompt that MD lacks weighs more than short ones that it has."""
    seen = observe_hits(Alignment(), 9000, Hit(9000), Hit(0), 0.0, RULES)
    seen = observe_hits(seen, 1000, Hit(500, 1000), Hit(5000), 0.0, RULES)
    assert seen.gap == pytest.approx(0.9)
    assert not is_aligned(seen, RULES)


@pytest.mark.parametrize(("main_tokens", "aligned"), [(850, True), (849, False), (1000, True)])
def test_the_bound_is_included(main_tokens: int, aligned: bool) -> None:
    """A gap at the bound is still aligned; an MD ahead of P has no gap."""
    rules = AlignmentRules(bound=0.0625)
    seen = observe_hits(Alignment(), 1000, Hit(912), Hit(main_tokens), 0.0, rules)
    assert is_aligned(seen, rules) is aligned


@pytest.mark.parametrize(("prefill", "main"), [(None, Hit(0)), (Hit(1000), None)])
def test_unknown_hits_say_nothing(prefill: Hit | None, main: Hit | None) -> None:
    """A request with an unknown hit does not change the comparison."""
    seen = Alignment(1000.0, 900.0, 100.0, 5.0)
    assert observe_hits(seen, 1000, prefill, main, 50.0, RULES) == seen


def test_the_gap_closes_as_time_goes_on() -> None:
    """Old misses fade against new hits."""
    seen = observe_hits(Alignment(), 1000, Hit(1000), Hit(0), 0.0, RULES)
    for second in range(0, 600, 10):
        seen = observe_hits(seen, 1000, Hit(1000), Hit(1000), float(second), RULES)
    assert seen.gap < 0.001


@given(since=st.floats(0, 1e6), now=st.floats(0, 1e6))
def test_a_clock_that_goes_back_fades_nothing(since: float, now: float) -> None:
    """The weight is in (0, 1], and 1 when the clock went back."""
    factor = fade_factor(since, now, 1e6)
    assert 0.0 < factor <= 1.0
    assert now > since or factor == 1.0
