"""Made-up traffic of agents: long contexts that come again with each turn, at a given distribution of hits."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from policies.simulator.arrivals import ARRIVALS
from policies.simulator.trace import BareRequest, Row
from policies.types import Rng


@dataclass(frozen=True, slots=True)
class HitBucket:
    """``share`` of the requests find between ``low`` and ``high`` of their prompt in P's caches."""

    low: float
    high: float
    share: float


SKEWED = (
    HitBucket(0.0, 0.9, 0.15),
    HitBucket(0.9, 0.95, 0.10),
    HitBucket(0.95, 0.97, 0.15),
    HitBucket(0.97, 0.99, 0.35),
    HitBucket(0.99, 1.0, 0.25),
)
"""Three quarters above 95 %, a mean of 90 %: the skew that PDD's report tells of."""
COLD_HIT = 0.2
"""As ``singular.max_hit``."""


def hit_at(buckets: Sequence[HitBucket], quantile: float) -> float:
    """Return the hit rate below which the share ``quantile`` of the requests lie."""
    left = quantile * sum(bucket.share for bucket in buckets)
    for bucket in buckets:
        if left < bucket.share:
            break
        left -= bucket.share
    return bucket.low + (bucket.high - bucket.low) * min(1.0, left / bucket.share)


def deal(rng: Rng, count: int) -> list[float]:
    """Draw so many numbers from [0, 1), one from each of as many equal parts of it, in any order.

    So what a simulation's requests lack in all is what was asked for: at a line load of 95 % chance would else decide.
    """
    numbers = [(place + rng.random()) / count for place in range(count)]
    for last in range(count - 1, 0, -1):
        other = int(rng.random() * (last + 1))
        numbers[last], numbers[other] = numbers[other], numbers[last]
    return numbers


def mean_hit(buckets: Sequence[HitBucket]) -> float:
    """Return the mean hit rate."""
    return sum(one.share * (one.low + one.high) / 2 for one in buckets) / sum(one.share for one in buckets)


@dataclass(slots=True)
class AgentSession:
    """One agent's context as it was last sent."""

    name: str
    prompt_tokens: int
    blocks: tuple[int, ...]


@dataclass(slots=True)
class AgentTraffic:
    """Agents by turns. A turn sends the leading part of the last one's context again and something new behind it."""

    rng: Rng
    hits: Sequence[HitBucket] = SKEWED
    prompt_tokens: int = 63_000
    """Mean length of a prompt."""
    output_tokens: int = 1_000
    """Mean length of an answer."""
    spread: float = 0.5
    """Prompts are between 1 less and 1 more this share of the mean."""
    output_spread: float = 1.0
    """The same of answers."""
    sessions: int = 400
    """Agents whose contexts are alive at once."""
    block_tokens: int = 256
    cold_output_tokens: int | None = None
    """Mean length of answers to prompts with a hit below ``COLD_HIT``; None: as of all."""
    _fresh: int = 0
    _pool: list[AgentSession] = field(default_factory=list)

    def __post_init__(self) -> None:
        for number in range(self.sessions):
            tokens = self._length(self.prompt_tokens, self.spread)
            self._pool.append(AgentSession(f"s{number}", tokens, self._new_blocks(-(-tokens // self.block_tokens))))

    def contexts(self) -> list[tuple[int, ...]]:
        """What the agents have sent so far: what caches hold when this is called before any turn."""
        return [session.blocks for session in self._pool]

    def rows(self, count: int, rate_per_s: float, arrivals: str = "poisson") -> list[Row]:
        """Make so many requests, in order of time."""
        times = list(islice(ARRIVALS[arrivals](self.rng, rate_per_s), count))
        hits = [hit_at(self.hits, quantile) for quantile in deal(self.rng, count)]
        return [self._turn(self._pick(), at_s, hit) for at_s, hit in zip(times, hits, strict=True)]

    def dress(self, lengths: Iterable[BareRequest]) -> Iterator[Row]:
        """Give a trace that has nothing but lengths the hits of these agents."""
        for one in lengths:
            session = self._pick()
            session.prompt_tokens = one.prompt_tokens
            yield self.turn(session, one.at_s, one.output_tokens)

    def turn(self, session: AgentSession, at_s: float, output_tokens: int | None = None) -> Row:
        """One request of a session."""
        return self._turn(session, at_s, hit_at(self.hits, self.rng.random()), output_tokens)

    def _turn(self, session: AgentSession, at_s: float, hit: float, output_tokens: int | None = None) -> Row:
        tokens = session.prompt_tokens
        kept = session.blocks[: int(hit * tokens) // self.block_tokens]
        session.blocks = kept + self._new_blocks(-(-tokens // self.block_tokens) - len(kept))
        mean = self.cold_output_tokens if self.cold_output_tokens and hit < COLD_HIT else self.output_tokens
        answer = output_tokens or self._length(mean, self.output_spread)
        return Row(at_s, tokens, answer, session.blocks, session.name)

    def _pick(self) -> AgentSession:
        return self._pool[int(self.rng.random() * len(self._pool))]

    def find(self, number: int) -> AgentSession:
        """Return an agent by its number."""
        return self._pool[number]

    def _length(self, mean: int, spread: float) -> int:
        offset = self.rng.random() + self.rng.random() - 1
        return max(1, round(mean * (1 + spread * offset)))

    def _new_blocks(self, count: int) -> tuple[int, ...]:
        self._fresh += count
        return tuple(range(self._fresh - count, self._fresh))
