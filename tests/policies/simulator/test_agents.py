"""Made-up agents: hits as given, prefixes that were sent before, and when requests come."""

import math
import random
from itertools import islice, pairwise

import pytest

from policies.simulator.agents import SKEWED, AgentTraffic, HitBucket, deal, hit_at, mean_hit
from policies.simulator.arrivals import ARRIVALS, bursty, diurnal, poisson
from policies.simulator.trace import BareRequest


def test_the_skew_is_the_reported_one() -> None:
    """Three quarters of the requests hit above 95 %, and the mean is 90 %."""
    assert mean_hit(SKEWED) == pytest.approx(0.9, abs=0.005)
    assert sum(bucket.share for bucket in SKEWED if bucket.low >= 0.95) == pytest.approx(0.75)
    drawn = [hit_at(SKEWED, quantile) for quantile in deal(random.Random(1), 1_000)]
    assert sum(hit > 0.95 for hit in drawn) / len(drawn) == pytest.approx(0.75, abs=0.002)
    assert sum(drawn) / len(drawn) == pytest.approx(mean_hit(SKEWED), abs=0.001)
    assert (hit_at(SKEWED, 0.0), round(hit_at(SKEWED, 0.999999), 3)) == (0.0, 1.0)


def test_numbers_are_dealt_in_any_order() -> None:
    """Each equal part of the range is drawn from once, in an order that the seed decides."""
    dealt = deal(random.Random(1), 50)
    assert sorted(int(number * 50) for number in dealt) == list(range(50))
    assert dealt != sorted(dealt) and dealt == deal(random.Random(1), 50) != deal(random.Random(2), 50)


def test_cold_prompts_may_have_answers_of_their_own_length() -> None:
    """Prompts of which next to nothing is cached have the other mean, the rest the usual one."""
    buckets = (HitBucket(0.0, 0.1, 0.5), HitBucket(0.9, 0.9, 0.5))
    traffic = AgentTraffic(random.Random(1), buckets, sessions=5, output_spread=0.0, cold_output_tokens=50)
    assert sorted(row.output_tokens for row in traffic.rows(20, 1.0)) == [50] * 10 + [1_000] * 10


def test_turns_hit_as_given() -> None:
    """What a turn shares with what its session sent before is the drawn hit, to a block."""
    traffic = AgentTraffic(random.Random(1), (HitBucket(0.8, 0.8, 1.0),), sessions=5, block_tokens=100)
    seen = {block for context in traffic.contexts() for block in context}
    for row in traffic.rows(50, rate_per_s=1.0):
        known = sum(block in seen for block in row.blocks)
        assert 0 <= 0.8 * row.prompt_tokens - known * 100 < 100
        assert len(row.blocks) == -(-row.prompt_tokens // 100)
        seen |= set(row.blocks)


def test_agents_repeat_with_their_seed() -> None:
    """The same seed makes the same rows, in order of time."""
    one, other = (AgentTraffic(random.Random(3)).rows(50, 2.0, "bursty") for _ in range(2))
    assert one == other
    assert all(a.at_s <= b.at_s for a, b in pairwise(one))


def test_lengths_are_dressed_with_hits() -> None:
    """A trace without blocks keeps its times and lengths and gets the agents' hits."""
    traffic = AgentTraffic(random.Random(1), (HitBucket(0.5, 0.5, 1.0),), sessions=1, block_tokens=10)
    rows = list(traffic.dress([BareRequest(0.0, 1000, 5), BareRequest(1.0, 400, 6)]))
    assert [(row.at_s, row.prompt_tokens, row.output_tokens) for row in rows] == [(0.0, 1000, 5), (1.0, 400, 6)]
    shared = sum(a == b for a, b in zip(rows[0].blocks, rows[1].blocks, strict=False))
    assert shared == 20


@pytest.mark.parametrize("name", ARRIVALS)
def test_arrivals_keep_their_rate(name: str) -> None:
    """In the long run so many come as asked for."""
    arrive = diurnal if name == "diurnal" else ARRIVALS[name]
    times = list(islice(arrive(random.Random(1), 10.0), 50_000))
    if name == "diurnal":
        times = list(islice(diurnal(random.Random(1), 10.0, period_s=100.0), 50_000))
    assert len(times) / times[-1] == pytest.approx(10.0, rel=0.05)


def test_bursts_are_bursts() -> None:
    """The pauses of bursty arrivals spread several times as wide as random ones."""

    def spread(times: list[float]) -> float:
        pauses = [b - a for a, b in pairwise(times)]
        mean = sum(pauses) / len(pauses)
        return math.sqrt(sum((pause - mean) ** 2 for pause in pauses) / len(pauses)) / mean

    rng = random.Random(2)
    assert spread(list(islice(poisson(rng, 1.0), 20_000))) == pytest.approx(1.0, rel=0.05)
    assert spread(list(islice(bursty(rng, 1.0), 20_000))) == pytest.approx(3.0, rel=0.1)
