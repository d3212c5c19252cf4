"""When requests come: at random, in bursts, by the time of day. All at a mean of ``rate_per_s``, forever."""

import math
from collections.abc import Callable, Iterator

from policies.types import Rng

DAY_S = 86_400.0
NIGHT_SHARE = 0.2
"""Of a diurnal rate: the least over the most. Public traces lie between 0.1 and 0.4."""
BURST_CV = 3.0
"""Spread of a bursty arrival's pauses, by their mean; BurstGPT reports 1.5 to 4."""


def wait_s(rng: Rng, mean_s: float) -> float:
    """An exponentially distributed time."""
    return -mean_s * math.log(1.0 - rng.random())


def poisson(rng: Rng, rate_per_s: float) -> Iterator[float]:
    """Each at random, whatever came before."""
    at_s = 0.0
    while True:
        at_s += wait_s(rng, 1 / rate_per_s)
        yield at_s


def bursty(rng: Rng, rate_per_s: float, spread: float = BURST_CV) -> Iterator[float]:
    """Short pauses and a few long ones (a hyperexponential distribution with balanced means)."""
    share = (1 + math.sqrt((spread**2 - 1) / (spread**2 + 1))) / 2
    at_s = 0.0
    while True:
        short = rng.random() < share
        at_s += wait_s(rng, 1 / (2 * rate_per_s * (share if short else 1 - share)))
        yield at_s


def diurnal(rng: Rng, rate_per_s: float, period_s: float = DAY_S) -> Iterator[float]:
    """At random at a rate that goes up and down over ``period_s``, beginning half-way up."""
    swing = (1 - NIGHT_SHARE) / (1 + NIGHT_SHARE)
    for at_s in poisson(rng, rate_per_s * (1 + swing)):
        if rng.random() * (1 + swing) < 1 + swing * math.sin(2 * math.pi * at_s / period_s):
            yield at_s


ARRIVALS: dict[str, Callable[[Rng, float], Iterator[float]]] = {
    "poisson": poisson,
    "bursty": bursty,
    "diurnal": diurnal,
}
