"""The blocks that each instance holds, in this process's memory, and the walk that turns them into hits.

Held blocks are closed under "has a parent": along a prompt, blocks that are held come first and then none is, so a
binary search finds the end. Whoever changes a mirror keeps that property (see ``gateway.index.residency``).
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Generic, TypeVar

from gateway.index.hashing import BLOCK_TOKENS
from gateway.index.leftovers import let_go
from gateway.index.types import CacheHit, CacheSpec, InstanceStats

V = TypeVar("V", int, bytes, int | bytes)


class KeySets(Generic[V]):
    """Sets by key. Most hold one value and are kept without a set, as there may be millions of keys."""

    def __init__(self) -> None:
        self._values: dict[int, V | set[V]] = {}

    def __contains__(self, key: int) -> bool:
        return key in self._values

    def of(self, key: int) -> Collection[V]:
        """Return the values of ``key``; read them before the next change."""
        values = self._values.get(key)
        if values is None:
            return ()
        return values if isinstance(values, set) else (values,)

    def add(self, key: int, value: V) -> None:
        """Add a value to a key. Idempotent."""
        values = self._values.get(key)
        if values is None:
            self._values[key] = value
        elif isinstance(values, set):
            values.add(value)
        elif values != value:
            self._values[key] = {values, value}

    def discard(self, key: int, value: V) -> None:
        """Take a value from a key. Idempotent."""
        values = self._values.get(key)
        if isinstance(values, set):
            values.discard(value)
            if not values:
                del self._values[key]
        elif values == value:
            del self._values[key]

    def clear(self) -> None:
        let_go(self._values)
        self._values = {}


PREDICTED_LIMIT_BLOCKS = 1_000_000
EXPIRED_AT_ONCE = 50_000


@dataclass(frozen=True, slots=True)
class CacheDelta:
    """Changes of one rank's blocks. ``clear``: all its blocks go first."""

    clear: bool = False
    held: Sequence[int] = ()
    gone: Sequence[int] = ()

    def __len__(self) -> int:
        return len(self.held) + len(self.gone)


@dataclass(slots=True)
class RankBlocks:
    """Blocks that one data-parallel rank holds, in whatever tier."""

    held: set[int] = field(default_factory=set)

    def apply(self, delta: CacheDelta) -> None:
        """Apply ``delta``; applying it again changes nothing."""
        if delta.clear:
            let_go(self.held)
            self.held = set()
        self.held.update(delta.held)
        self.held.difference_update(delta.gone)

    def walk(self, backwards: Sequence[int]) -> int:
        """Return how many blocks of the prompt are held; ``backwards`` holds its keys, last first."""
        if not backwards or backwards[-1] not in self.held:  # most ranks hold nothing of most prompts
            return 0
        return len(backwards) - bisect_left(backwards, True, key=self.held.__contains__)


@dataclass(slots=True)
class PredictedBlocks:
    """Blocks that an instance without events should hold by now, each until its time.

    A prompt's blocks are noted together, so a block never expires before the one after it.
    """

    limit: int
    until: dict[int, float] = field(default_factory=dict)
    _batches: deque[tuple[float, Sequence[int]]] = field(default_factory=deque)
    _latest: float = 0.0
    _expired: float = -inf
    """What stands until then has expired, whether it was dropped yet or not."""

    def stands(self, keys: Sequence[int], until: float) -> bool:
        """Say whether a prompt's ``keys`` are all held until then: the last one is the first to go."""
        return not keys or self.until.get(keys[-1], -1.0) >= until

    def note(self, keys: Sequence[int], until: float) -> None:
        """Hold ``keys`` until the time ``until`` at least; the oldest notes make room beyond ``limit`` blocks."""
        held = self.until
        if until >= self._latest:
            self._latest = until
            held.update(dict.fromkeys(keys, until))
        else:
            held.update({key: max(until, held.get(key, until)) for key in keys})
        if self._batches and self._batches[-1][0] == until:  # dropping the earlier one would drop what both hold
            keys = [*self._batches.pop()[1], *keys]
        self._batches.append((until, keys))
        while len(held) > self.limit and len(self._batches) > 1:
            self._drop_oldest()

    def expire(self, now: float) -> None:
        """Forget what has reached its time: not much more than ``EXPIRED_AT_ONCE`` blocks in one call."""
        self._expired = max(self._expired, now)
        dropped = 0
        while self._batches and self._batches[0][0] <= now and dropped < EXPIRED_AT_ONCE:
            dropped += len(self._batches[0][1])
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        until, keys = self._batches.popleft()
        held = self.until
        for key in keys:
            if held.get(key, until + 1.0) <= until:
                del held[key]

    def walk(self, backwards: Sequence[int]) -> int:
        """Return how many blocks of the prompt are held; ``backwards`` holds its keys, last first."""
        until, expired = self.until, self._expired
        return len(backwards) - bisect_left(backwards, True, key=lambda key: until.get(key, -inf) > expired)


class Holding:
    """What one instance holds, by rank. ``predicted`` is empty for one that publishes events."""

    def __init__(self, spec: CacheSpec, predicted_limit: int) -> None:
        self.spec = spec
        self.known = not spec.sources
        self.ranks = [RankBlocks() for _ in range(spec.dp_size)]
        self.predicted = [] if spec.sources else [PredictedBlocks(predicted_limit) for _ in range(spec.dp_size)]
        self.updated_at: float | None = None

    def hit(self, backwards: Sequence[int], now: float, prompt_tokens: int) -> CacheHit:
        """Return the hit of a prompt of ``prompt_tokens`` tokens whose keys are ``backwards``, last first."""
        is_predicted = bool(self.predicted)
        if is_predicted:
            for one in self.predicted:
                one.expire(now)
        ranks = self.predicted or self.ranks
        if len(ranks) == 1:
            tokens = self._whole_blocks(ranks[0].walk(backwards), prompt_tokens)
            return CacheHit(tokens if self.known else None, tokens, is_predicted)
        by_rank = tuple([self._whole_blocks(rank.walk(backwards), prompt_tokens) for rank in ranks])
        tokens = max(by_rank)
        return CacheHit(tokens if self.known else None, tokens, is_predicted, by_rank)

    def _whole_blocks(self, own_blocks: int, prompt_tokens: int) -> int:
        """Round to the instance's blocks; the last token of a prompt is never taken from a cache."""
        size = self.spec.block_size_tokens
        tokens = own_blocks * BLOCK_TOKENS // size * size
        return (prompt_tokens - 1) // size * size if tokens and tokens == prompt_tokens else tokens

    def stats(self, now: float) -> InstanceStats:
        """Return the sizes and the age of what is held."""
        for predicted in self.predicted:
            predicted.expire(now)
        return InstanceStats(
            model=self.spec.model,
            known=self.known,
            predicted=bool(self.predicted),
            blocks=sum(len(rank.held) for rank in self.ranks) + sum(len(one.until) for one in self.predicted),
            update_age_s=None if self.updated_at is None else now - self.updated_at,
        )


class Mirror:
    """Holdings of all instances, by model.

    Times are those of the ``now`` function, in seconds. ``on_change`` is called after a change that came from outside.
    """

    def __init__(
        self, now: Callable[[], float], on_change: Callable[[], None], predicted_limit: int = PREDICTED_LIMIT_BLOCKS
    ) -> None:
        self._now = now
        self._on_change = on_change
        self._predicted_limit = predicted_limit
        self._holdings: dict[str, Holding] = {}
        self._by_model: dict[str, dict[str, Holding]] = {}

    def admit(self, spec: CacheSpec) -> bool:
        """Track an instance; False when it was tracked already and goes on as it was.

        A spec that differs, or another boot id, starts an empty holding. A boot id learnt late is no restart.
        """
        holding = self._holdings.get(spec.id)
        if holding is not None and spec == replace(holding.spec, boot_id=spec.boot_id):
            old_boot = holding.spec.boot_id
            if spec.boot_id is None or old_boot is None or spec.boot_id == old_boot:
                holding.spec = replace(spec, boot_id=spec.boot_id or old_boot)
                return False
        self.remove(spec.id)
        holding = Holding(spec, self._predicted_limit)
        self._holdings[spec.id] = holding
        self._by_model.setdefault(spec.model, {})[spec.id] = holding
        return True

    def remove(self, instance_id: str) -> None:
        """Forget an instance; unknown ids are ignored."""
        holding = self._holdings.pop(instance_id, None)
        if holding is not None:
            let_go(*(rank.held for rank in holding.ranks), *(one.until for one in holding.predicted))
            siblings = self._by_model[holding.spec.model]
            del siblings[instance_id]
            if not siblings:
                del self._by_model[holding.spec.model]

    def get(self, instance_id: str) -> Holding | None:
        """Return the holding of an instance, or None."""
        return self._holdings.get(instance_id)

    def __iter__(self) -> Iterator[Holding]:
        return iter(list(self._holdings.values()))

    def of_model(self, model: str) -> list[Holding]:
        """Return the holdings of a model's instances."""
        return list(self._by_model.get(model, {}).values())

    def load(self, instance_id: str, ranks: list[RankBlocks], known: bool) -> None:
        """Replace all that events told of an instance."""
        holding = self._holdings.get(instance_id)
        if holding is not None and not holding.predicted:
            let_go(*(rank.held for rank in holding.ranks))
            holding.ranks = ranks
            holding.known = known
            holding.updated_at = self._now()
            self._on_change()

    def forget(self, instance_id: str) -> None:
        """Drop all that events told of an instance; it is not known any more what it holds."""
        holding = self._holdings.get(instance_id)
        if holding is not None:
            self.load(instance_id, [RankBlocks() for _ in range(holding.spec.dp_size)], known=False)

    def predict(self, instance_id: str, rank: int, keys: Sequence[int], until: float) -> None:
        """Hold a prompt's ``keys`` for a rank of an instance without events until ``until``; others are ignored."""
        holding = self._holdings.get(instance_id)
        if holding is not None and rank < len(holding.predicted):
            holding.predicted[rank].note(keys, until)
            holding.updated_at = self._now()
            self._on_change()

    def apply(self, instance_id: str, rank: int, delta: CacheDelta) -> None:
        """Apply ``delta`` to a rank of an instance that is tracked; others are ignored."""
        holding = self._holdings.get(instance_id)
        if holding is not None and rank < len(holding.ranks):
            holding.ranks[rank].apply(delta)
            holding.updated_at = self._now()
            self._on_change()

    def set_known(self, instance_id: str, known: bool) -> None:
        """Say whether an instance's entries are all that it holds."""
        holding = self._holdings.get(instance_id)
        if holding is not None:
            holding.known = known
            self._on_change()

    def hits(self, model: str, keys: Sequence[int], prompt_tokens: int) -> dict[str, CacheHit]:
        """Return every instance's hit for a prompt of ``prompt_tokens`` tokens whose block keys are ``keys``."""
        now = self._now()
        backwards = keys[::-1]
        holdings = self._by_model.get(model, {})
        return {instance_id: holding.hit(backwards, now, prompt_tokens) for instance_id, holding in holdings.items()}

    def stats(self) -> dict[str, InstanceStats]:
        """Return each instance's state."""
        now = self._now()
        return {instance_id: holding.stats(now) for instance_id, holding in self._holdings.items()}
