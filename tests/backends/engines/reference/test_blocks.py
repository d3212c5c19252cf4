from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from backends.engines.reference.blocks import (
    BlockHash,
    BlockPool,
    Cleared,
    PoolEvent,
    Removed,
    Stored,
    chain_hashes,
    root_hash,
)

ROOT = root_hash(None)


def chain(*blocks: list[int]) -> list[BlockHash]:
    """Hashes of consecutive blocks."""
    hashes: list[BlockHash] = []
    for tokens in blocks:
        hashes += chain_hashes(hashes[-1] if hashes else ROOT, tokens, len(tokens))
    return hashes


def cache(pool: BlockPool, *blocks: list[int]) -> list[int]:
    """Put blocks of a sequence into the pool, held."""
    held = pool.allocate(len(blocks))
    assert held is not None
    hashes = chain(*blocks)
    for index, tokens in enumerate(blocks):
        pool.commit(held[index], hashes[index], hashes[index - 1] if index else None, tokens, "salt")
    return held


def test_longest_cached_prefix_is_found() -> None:
    """Only blocks from the start on count; what follows a gap does not."""
    pool = BlockPool(8, 2)
    held = cache(pool, [1, 2], [3, 4])
    assert pool.find_prefix(chain([1, 2], [3, 4], [5, 6])) == held
    assert pool.find_prefix(chain([9, 9], [3, 4])) == []


def test_allocation_prefers_adjacent_blocks() -> None:
    """A sequence that grows gets the block after its last one while that is free."""
    pool = BlockPool(8, 2)
    first, second = pool.allocate(2), pool.allocate(1)
    assert first == [0, 1] and second == [2]
    pool.release(second)
    assert pool.allocate(2, after=1) == [2, 3]


def test_too_large_a_request_changes_nothing() -> None:
    """Without enough blocks nothing is allocated and nothing evicted."""
    pool = BlockPool(4, 2)
    pool.release(cache(pool, [1, 2]))
    pool.take_events()
    assert pool.allocate(5) is None
    assert pool.available_blocks == 4
    assert pool.take_events() == []


def test_eviction_takes_the_least_recently_used_and_the_end_of_a_sequence_first() -> None:
    """A sequence's tail goes before its head, and a sequence that was used again goes last."""
    pool = BlockPool(4, 2)
    old, new = cache(pool, [1, 2], [3, 4]), cache(pool, [5, 6], [7, 8])
    pool.release(old)
    pool.release(new)
    pool.hold(old)
    pool.release(old)
    pool.take_events()
    assert pool.allocate(1) is not None
    assert pool.take_events() == [Removed(chain([5, 6], [7, 8])[1])]


def test_events_tell_what_is_cached() -> None:
    """The first block names its salt and no parent, the next one its parent; a clear says so."""
    pool = BlockPool(4, 2)
    cache(pool, [1, 2], [3, 4])
    first, second = chain([1, 2], [3, 4])
    pool.clear()
    assert pool.take_events() == [
        Stored(first, None, (1, 2), "salt"),
        Stored(second, first, (3, 4), None),
        Cleared(),
    ]
    assert pool.take_events() == []


def test_a_second_block_with_the_same_content_stays_private() -> None:
    """It is not announced again, and it is free at once when released."""
    pool = BlockPool(4, 2)
    cache(pool, [1, 2])
    pool.take_events()
    twin = cache(pool, [1, 2])
    assert pool.take_events() == []
    pool.release(twin)
    assert pool.cached_blocks == 1
    pool.check_integrity()


class PoolMachine(RuleBasedStateMachine):
    """Any mix of calls by several owners."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(6, 2)
        self.owned: list[list[int]] = []
        self.cached: set[BlockHash] = set()
        self.next_token = 0

    @rule(count=st.integers(1, 4), data=st.data())
    def allocate(self, count: int, data: st.DataObject) -> None:
        after = data.draw(st.none() | st.integers(0, 5))
        before = self.pool.available_blocks
        blocks = self.pool.allocate(count, after)
        assert (blocks is None) == (count > before)
        if blocks is not None:
            assert not {block for owner in self.owned for block in owner} & set(blocks)
            self.owned.append(blocks)

    @precondition(lambda self: self.owned)
    @rule(data=st.data(), fresh=st.booleans())
    def commit(self, data: st.DataObject, fresh: bool) -> None:
        blocks = data.draw(st.sampled_from(self.owned))
        self.next_token += fresh
        parent: BlockHash | None = None
        for block in blocks:
            value = next(chain_hashes(parent or ROOT, [self.next_token], 1))
            self.pool.commit(block, value, parent, [self.next_token], None)
            parent = value

    @precondition(lambda self: self.owned)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        blocks = self.owned.pop(data.draw(st.integers(0, len(self.owned) - 1)))
        self.pool.release(blocks)

    @rule(data=st.data())
    def hold_cached(self, data: st.DataObject) -> None:
        token = data.draw(st.integers(0, self.next_token))
        hashes = chain(*([token] for _ in range(4)))
        found = self.pool.find_prefix(hashes)
        self.pool.hold(found)
        if found:
            self.pool.release(found)

    @rule()
    def clear(self) -> None:
        self.pool.clear()

    @invariant()
    def sound(self) -> None:
        self.pool.check_integrity()
        for event in self.pool.take_events():
            self.follow(event)
        assert len(self.cached) == self.pool.cached_blocks

    def follow(self, event: PoolEvent) -> None:
        match event:
            case Stored():
                assert event.hash not in self.cached
                self.cached.add(event.hash)
            case Removed():
                self.cached.remove(event.hash)
            case Cleared():
                self.cached.clear()


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPool = PoolMachine.TestCase
