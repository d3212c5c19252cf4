"""How long a tenant's answers are: a fading histogram with four buckets per doubling.

Its size is fixed, updates are pure, and histograms of several gateways add up, so the state can be shared.
"""

import math
from dataclasses import dataclass

from policies.rules import OutputLengthRules

BUCKETS_PER_DOUBLING = 4
BUCKETS = 21 * BUCKETS_PER_DOUBLING
"""Enough for two million tokens; longer answers count in the last."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Faded number of answers per bucket; ``samples`` is how many were ever seen."""

    counts: tuple[float, ...] = (0.0,) * BUCKETS
    samples: int = 0


def observe_length(lengths: Lengths, tokens: int, rules: OutputLengthRules) -> Lengths:
    """Count one finished answer of ``tokens`` tokens (0 counts as 1)."""
    bucket = min(BUCKETS - 1, int(math.log2(max(1, tokens)) * BUCKETS_PER_DOUBLING))
    keep = 1.0 - 1.0 / rules.memory_samples
    counts = [count * keep for count in lengths.counts]
    counts[bucket] += 1.0
    return Lengths(tuple(counts), lengths.samples + 1)


def merge_lengths(one: Lengths, other: Lengths) -> Lengths:
    """Add what two gateways have seen."""
    return Lengths(tuple(map(float.__add__, one.counts, other.counts)), one.samples + other.samples)


def length_quantile(lengths: Lengths, quantile: float) -> int | None:
    """Smallest bucket end that at least ``quantile`` of the answers do not exceed; None when nothing was seen."""
    goal = quantile * sum(lengths.counts)
    if goal <= 0:
        return None
    bucket, below = -1, 0.0
    while below < goal and bucket < BUCKETS - 1:
        bucket += 1
        below += lengths.counts[bucket]
    return math.ceil(2 ** ((bucket + 1) / BUCKETS_PER_DOUBLING)) - 1


def expected_tokens(
    lengths: Lengths, max_output_tokens: int | None, hint_tokens: int | None, rules: OutputLengthRules
) -> int | None:
    """Expect a length: the client's hint, else the tenant's quantile, never above the limit; None: no idea."""
    if hint_tokens is not None:
        expected: int | None = hint_tokens
    elif lengths.samples >= rules.min_samples:
        expected = length_quantile(lengths, rules.quantile)
    else:
        expected = None
    known = [tokens for tokens in (expected, max_output_tokens) if tokens is not None]
    return min(known, default=None)
