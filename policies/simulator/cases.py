"""One simulation as a value that can be sent to another process, and the search for what a fleet can serve."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from policies.rules import Rules
from policies.simulator.agents import SKEWED, AgentTraffic, HitBucket, mean_hit
from policies.simulator.closed_form import Workload
from policies.simulator.fleet import Fleet
from policies.simulator.replay import Replay, Sample
from policies.simulator.report import Report
from policies.simulator.trace import Row, mean_rate, pace
from policies.types import Rng, Role

GOOD_SHARE = 0.95
"""Share of the requests that must keep the promises where the most that a fleet serves is sought."""
FEWEST_AGENTS = 20
FEWEST, MOST = 100, 6_000
"""Requests of one simulation of a search."""
CDF_POINTS = 101
SETTLE_SHARE = 0.1
"""First requests of a simulation that only fill the fleet and are not counted."""


class Traffic(Protocol):
    """Something that makes the requests of a simulation."""

    @property
    def block_tokens(self) -> int:
        """Tokens of a block."""
        ...

    def make(self, rng: Rng, rate_per_s: float) -> tuple[list[Row], list[tuple[int, ...]]]:
        """Return the rows, and the prefixes that caches hold before."""
        ...

    def workload(self, rules: Rules) -> Workload:
        """Return a request on average."""
        ...

    def lasting(self, seconds: float, rate_per_s: float) -> "Traffic":
        """Return so much of it as comes in that time at a rate, more or less."""
        ...


def pace_s(rules: Rules, output_tokens: float) -> float:
    """Longest mean time between tokens that keeps the promises, where half of the wait for the first token is used."""
    total_s, ttft_s = rules.slo.total_s or 60.0, rules.slo.ttft_s or 0.0
    return max(0.001, (total_s - min(ttft_s, total_s) / 2) / max(1.0, output_tokens))


@dataclass(frozen=True, slots=True)
class Agents:
    """Made-up agents."""

    requests: int = 3_000
    prompt_tokens: int = 63_000
    output_tokens: int = 1_000
    output_spread: float = 1.0
    """Answers are between 1 less and 1 more this share of the mean."""
    hits: tuple[HitBucket, ...] = SKEWED
    turn_s: float = 60.0
    """Between two requests of one agent: how many contexts are alive at once follows from it and the rate."""
    arrivals: str = "poisson"
    block_tokens: int = 256
    running: int = 0
    """Agents of a closed loop; 0: requests come on their own."""
    pause_s: float = 5.0
    """Of an agent between an answer and its next request, in a closed loop."""
    cold_output_tokens: int | None = None
    """Mean length of answers to prompts of which next to nothing is cached; None: as of all."""

    def source(self, rng: Rng, rate_per_s: float) -> AgentTraffic:
        """Make as many agents as ask so often."""
        return AgentTraffic(
            rng,
            self.hits,
            self.prompt_tokens,
            self.output_tokens,
            output_spread=self.output_spread,
            sessions=max(FEWEST_AGENTS, self.running, round(rate_per_s * self.turn_s)),
            block_tokens=self.block_tokens,
            cold_output_tokens=self.cold_output_tokens,
        )

    def make(self, rng: Rng, rate_per_s: float) -> tuple[list[Row], list[tuple[int, ...]]]:
        """See ``Traffic``."""
        source = self.source(rng, rate_per_s)
        contexts = source.contexts()
        return pace(source.rows(self.requests, rate_per_s, self.arrivals), rate_per_s), contexts

    def lasting(self, seconds: float, rate_per_s: float) -> "Agents":
        """See ``Traffic``."""
        return replace(self, requests=min(MOST, max(FEWEST, round(seconds * rate_per_s))))

    def workload(self, rules: Rules) -> Workload:
        """See ``Traffic``."""
        new = self.prompt_tokens * (1 - mean_hit(self.hits)) + self.block_tokens / 2
        itl_s = pace_s(rules, self.output_tokens)
        return Workload(self.prompt_tokens, new, new, self.output_tokens, itl_s)


@dataclass(frozen=True, slots=True)
class Recorded:
    """A trace's rows, in order of time."""

    rows: tuple[Row, ...]
    block_tokens: int

    def make(self, rng: Rng, rate_per_s: float) -> tuple[list[Row], list[tuple[int, ...]]]:
        """See ``Traffic``. Begins with empty caches, as the trace did."""
        return pace(self.rows, rate_per_s), []

    @property
    def rate_per_s(self) -> float:
        """As it was recorded."""
        return mean_rate(self.rows)

    def lasting(self, seconds: float, rate_per_s: float) -> "Recorded":
        """See ``Traffic``. A part from the middle, which is neither the quiet start nor the end."""
        count = min(len(self.rows), MOST, max(FEWEST, round(seconds * rate_per_s)))
        start = (len(self.rows) - count) // 2
        return replace(self, rows=self.rows[start : start + count])

    def workload(self, rules: Rules) -> Workload:
        """See ``Traffic``. What was sent before counts as cached, as in a cache without bounds."""
        seen: set[int] = set()
        prompts = uncached = outputs = 0
        for row in self.rows:
            known = next((at for at, block in enumerate(row.blocks) if block not in seen), len(row.blocks))
            seen.update(row.blocks)
            prompts += row.prompt_tokens
            uncached += max(1, row.prompt_tokens - known * self.block_tokens)
            outputs += row.output_tokens
        count = max(1, len(self.rows))
        mean_output = outputs / count
        return Workload(prompts / count, uncached / count, uncached / count, mean_output, pace_s(rules, mean_output))


@dataclass(frozen=True, slots=True)
class SimulationCase:
    """One simulation: who serves what, how fast it comes, under which rules."""

    name: str
    fleet: Fleet
    rules: Rules
    traffic: Agents | Recorded
    rate_per_s: float
    seed: int = 1
    itl_s: float | None = None
    """Longest mean time between an answer's tokens that is promised, beside what the rules promise."""


@dataclass(frozen=True, slots=True)
class CaseResult:
    """What it came to."""

    case: SimulationCase
    report: Report
    ttft_s: tuple[float, ...]
    """Quantiles from 0 to 100 %."""
    gap_s: tuple[float, ...]
    samples: tuple[Sample, ...]

    @property
    def wanted(self) -> dict[str, float]:
        """Instances that each role should have, as a gateway would tell autoscalers; in the later half, on average."""
        seen = self.samples[len(self.samples) // 2 :]
        return {role.value: sum([one.wanted.get(role, 0.0) for one in seen]) / max(1, len(seen)) for role in Role}


def run_case(case: SimulationCase, rng: Rng, tick: Callable[[], None] = lambda: None) -> CaseResult:
    """Simulate; ``rng`` should be seeded with the case's seed."""
    traffic, fleet = case.traffic, replace(case.fleet, block_tokens=case.traffic.block_tokens)
    if isinstance(traffic, Agents) and traffic.running:
        source = traffic.source(rng, 0.0)
        replay = Replay(fleet, case.rules, rng, source.contexts())
        replay.run_closed(source, traffic.running, traffic.pause_s, traffic.requests)
    else:
        rows, warm = traffic.make(rng, case.rate_per_s)
        replay = Replay(fleet, case.rules, rng, warm)
        replay.run(rows, tick)
    settle = int(len(replay.outcomes) * SETTLE_SHARE) if isinstance(traffic, Agents) else 0
    counted = replay.outcomes[settle:]
    ttft = [outcome.ttft_s for outcome in counted if outcome.ttft_s is not None]
    gaps = [outcome.gap_s for outcome in counted]
    report = replay.report(settle, case.itl_s)
    return CaseResult(case, report, quantiles(ttft), quantiles(gaps), tuple(replay.samples))


def quantiles(values: Sequence[float]) -> tuple[float, ...]:
    """Return ``CDF_POINTS`` of them, evenly; none of nothing."""
    ordered = sorted(values)
    most = len(ordered) - 1
    return tuple(ordered[round(most * point / (CDF_POINTS - 1))] for point in range(CDF_POINTS)) if ordered else ()


def search_rate(
    good: Callable[[float], float], start_per_s: float, share: float = GOOD_SHARE, precision: float = 0.02
) -> float:
    """Find the highest rate at which ``good`` (the share of good requests at a rate) is at least ``share``.

    Begins near ``start_per_s``. 0 where even a hundredth of that is too much.
    """
    low, high = 0.0, start_per_s
    while high < 1e6 and good(high) >= share:
        low, high = high, high * 1.25
    if not low:
        low = start_per_s
        while low > start_per_s / 100:
            low, high = low / 1.5, low
            if good(low) >= share:
                break
        else:
            return 0.0
    while high / low > 1 + precision:
        middle = (low + high) / 2
        if good(middle) >= share:
            low = middle
        else:
            high = middle
    return low
