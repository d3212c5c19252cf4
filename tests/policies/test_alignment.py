"""Alignment guard: token-weighted hits of MD against P, fading."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.alignment import fade_factor, is_aligned, observe_hits
from policies.rules import AlignmentRules
from policies.types import Alignment, Hit

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
