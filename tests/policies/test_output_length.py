"""Expected answer lengths: quantiles of what a tenant got before."""

import math
import random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from policies.output_length import BUCKETS, Lengths, expected_tokens, length_quantile, merge_lengths, observe_length
from policies.rules import OutputLengthRules

RULES = OutputLengthRules(quantile=0.9, min_samples=3, memory_samples=200)


def seen(*tokens: int, rules: OutputLengthRules = RULES) -> Lengths:
    """Lengths after these answers."""
    lengths = Lengths()
    for one in tokens:
        lengths = observe_length(lengths, one, rules)
    return lengths


def test_nothing_seen_has_no_quantile() -> None:
    """Without answers there is no quantile."""
    assert length_quantile(Lengths(), 0.9) is None


@given(tokens=st.lists(st.integers(1, 10**6), min_size=1, max_size=60), quantile=st.floats(0.01, 0.99))
def test_the_quantile_is_close_and_not_low(tokens: list[int], quantile: float) -> None:
    """The quantile is at least the true one and less than a bucket (19 %) above it."""
    rules = OutputLengthRules(memory_samples=10_000_000)
    rank = quantile * len(tokens)
    assume(abs(rank - round(rank)) > 0.001)
    true = sorted(tokens)[math.ceil(rank) - 1]
    found = length_quantile(seen(*tokens, rules=rules), quantile)
    assert found is not None
    assert true <= found <= true * 1.2


def test_zero_and_huge_lengths_are_counted() -> None:
    """An empty answer counts as one token, an absurd one in the last bucket."""
    assert length_quantile(seen(0), 0.5) == 1
    huge = seen(10**12)
    assert huge.counts[BUCKETS - 1] == 1.0
    assert length_quantile(huge, 0.5) is not None


def test_old_answers_fade() -> None:
    """After a change of habit the quantile follows the new answers."""
    rng = random.Random(2)
    lengths = seen(*(rng.randrange(3000, 4000) for _ in range(300)))
    for _ in range(1500):
        lengths = observe_length(lengths, rng.randrange(50, 60), RULES)
    found = length_quantile(lengths, 0.9)
    assert found is not None
    assert found < 80


def test_two_gateways_add_up() -> None:
    """Merging gives the quantile over what both have seen."""
    both = merge_lengths(seen(10, 10, 10), seen(1000))
    assert both.samples == 4
    assert sum(both.counts) == pytest.approx(sum(seen(10, 10, 10).counts) + 1)
    assert length_quantile(both, 0.7) == length_quantile(seen(10), 0.7)
    assert length_quantile(both, 0.9) == length_quantile(seen(1000), 0.9)


@pytest.mark.parametrize(
    ("lengths", "limit", "hint", "expected"),
    [
        (Lengths(), None, None, None),
        (Lengths(), 700, None, 700),
        (seen(100, 100), 700, None, 700),
        (seen(100, 100, 100), 700, None, 107),
        (seen(100, 100, 100), 50, None, 50),
        (seen(100, 100, 100), 700, 300, 300),
        (seen(100, 100, 100), 200, 300, 200),
        (seen(100, 100, 100), None, None, 107),
    ],
)
def test_expectation(lengths: Lengths, limit: int | None, hint: int | None, expected: int | None) -> None:
    """The client's hint goes before the tenant's past, which needs enough samples; nothing goes above the limit."""
    assert expected_tokens(lengths, limit, hint, RULES) == expected
