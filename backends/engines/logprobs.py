"""Log-probabilities, in the bounds and the order in which clients get them."""

import math
from collections.abc import Iterable

LOWEST_LOGPROB = -9999.0
"""Stands for a log-probability that is not a finite number, as in vLLM's own answers."""


def finite(logprob: float | None) -> float:
    """Return a log-probability as a finite number."""
    return logprob if logprob is not None and math.isfinite(logprob) else LOWEST_LOGPROB


def likeliest(entries: Iterable[tuple[int, float | None]], count: int) -> tuple[tuple[int, float], ...]:
    """Return the ``count`` likeliest of token ids with their log-probabilities, the likeliest first."""
    pairs = sorted(((token_id, finite(logprob)) for token_id, logprob in entries), key=lambda pair: -pair[1])
    return tuple(pairs[:count])
