"""Prefill curves: interpolation, steps, valleys."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.valley import PrefillCurve, Step, Valley, find_steps, find_valleys

STRAIGHT = PrefillCurve((100, 200, 400), (1.0, 2.0, 4.0))
BUMPY = PrefillCurve((100, 200, 300, 400, 500, 600), (1.0, 3.0, 2.5, 2.0, 5.0, 4.0))

CURVES = st.lists(st.tuples(st.integers(0, 10**6), st.floats(0.001, 1000)), min_size=2, max_size=20).filter(
    lambda points: len({tokens for tokens, _ in points}) == len(points)
)


def curve(points: list[tuple[int, float]]) -> PrefillCurve:
    """A curve through the points."""
    tokens, seconds = zip(*sorted(points), strict=True)
    return PrefillCurve(tokens, seconds)


@pytest.mark.parametrize(
    ("tokens", "seconds"),
    [(0, 1.0), (100, 1.0), (150, 1.5), (200, 2.0), (300, 3.0), (400, 4.0), (600, 6.0)],
)
def test_time_between_and_beyond_points(tokens: int, seconds: float) -> None:
    """Time is linear between points, flat before the first and goes on by the last slope."""
    assert STRAIGHT.at(tokens) == pytest.approx(seconds)


def test_time_never_falls_beyond_the_last_point() -> None:
    """A falling last piece is not drawn on to nothing."""
    assert BUMPY.at(10_000) == 4.0


@pytest.mark.parametrize(
    ("tokens", "seconds"),
    [
        ((1,), (1.0,)),
        ((1, 2), (1.0,)),
        ((2, 1), (1.0, 1.0)),
        ((1, 1), (1.0, 1.0)),
        ((-1, 1), (1.0, 1.0)),
        ((1, 2), (0, 1.0)),
    ],
)
def test_bad_curves_are_refused(tokens: tuple[int, ...], seconds: tuple[float, ...]) -> None:
    """A curve needs two points, ascending tokens and positive times."""
    with pytest.raises(ValueError, match=r"points|ascend|positive"):
        PrefillCurve(tokens, seconds)


def test_a_jump_is_a_step() -> None:
    """A rise beyond the usual slope is a step; an even curve has none."""
    assert find_steps(STRAIGHT) == ()
    jumpy = PrefillCurve((100, 200, 300, 400, 500), (1.0, 1.1, 1.2, 2.2, 2.3))
    (step,) = find_steps(jumpy)
    assert step == Step(300, 400, step.jump_s)
    assert step.jump_s == pytest.approx(0.9)


def test_valleys_are_found_in_order() -> None:
    """Lengths that cost more than a longer one form valleys, each with the length that is better."""
    assert find_valleys(BUMPY) == (
        Valley(200, 300, 400, 1.0),
        Valley(500, 500, 600, 1.0),
    )
    assert find_valleys(STRAIGHT) == ()


def test_noise_is_no_valley() -> None:
    """A bump within the tolerance is ignored."""
    assert find_valleys(PrefillCurve((1, 2, 3), (1.0, 2.01, 2.0)), tolerance=0.02) == ()


@given(points=CURVES)
def test_valleys_hold_what_they_say(points: list[tuple[int, float]]) -> None:
    """Each valley's better length is longer and cheaper than its ends, and outside of valleys nothing longer is."""
    found = curve(points)
    valleys = find_valleys(found, tolerance=0.0)
    inside = set()
    for valley in valleys:
        assert valley.from_tokens <= valley.to_tokens < valley.better_tokens
        assert valley.excess_s > 0
        inside |= {tokens for tokens in found.tokens if valley.from_tokens <= tokens <= valley.to_tokens}
    for index, tokens in enumerate(found.tokens):
        cheaper_later = min(found.seconds[index:]) < found.seconds[index]
        assert (tokens in inside) == cheaper_later


@given(points=CURVES, tokens=st.integers(0, 2 * 10**6))
def test_time_stays_within_its_points(points: list[tuple[int, float]], tokens: int) -> None:
    """Between two points time lies between their times; it is positive everywhere."""
    found = curve(points)
    seconds = found.at(tokens)
    assert seconds > 0
    if tokens <= found.tokens[-1]:
        assert min(found.seconds) * (1 - 1e-6) <= seconds <= max(found.seconds) * (1 + 1e-6)
