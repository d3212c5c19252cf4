"""From engine events to what counts, against a model that keeps whole prefixes in plain sets."""

from array import array
from collections import Counter
from dataclasses import dataclass, field
from itertools import takewhile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.kv.events import BlocksCleared, BlocksRemoved, BlocksStored, EngineBlockHash, EventBatch
from gateway.index.hashing import BLOCK_TOKENS, chain_seed, hash_blocks
from gateway.index.mirror import CacheDelta, RankBlocks
from gateway.index.residency import Residency

SEED = chain_seed("m", None, None)
MEDIA = ("GPU", "GPU", "GPU", "GPU", "CPU", "TAPE")
PIECE_TOKENS = 8
PIECES = tuple(tuple(range(begin, begin + 120)) for begin in (0, 500))
"""Prompts are made of pieces of these, so that they share prefixes of any length."""

Prefix = tuple[int, ...]
Step = tuple[str, Prefix, int, int, str]


def hash_of(prefix: Prefix) -> EngineBlockHash:
    """Stand in for an engine's hash of a block; some engines use numbers, others bytes."""
    name = hash(prefix)
    return name if name % 3 else name.to_bytes(8, "big", signed=True)


def prompt_of(choices: list[int]) -> Prefix:
    """Make a prompt of pieces."""
    cuts = [(i * PIECE_TOKENS, choice) for i, choice in enumerate(choices)]
    return tuple(token for begin, choice in cuts for token in PIECES[choice][begin : begin + PIECE_TOKENS])


@dataclass
class Model:
    """What an engine holds: whole prefixes, each in some tiers."""

    block_size: int
    tiers: dict[Prefix, set[str]] = field(default_factory=dict)

    def store(self, prompt: Prefix, first: int, count: int, medium: str) -> BlocksStored | None:
        """Store blocks of a prompt, if it has them; they only count when the engine holds what is before them."""
        size = self.block_size
        ends = [end for end in range((first + 1) * size, (first + count) * size + 1, size) if end <= len(prompt)]
        if not ends:
            return None
        parent = prompt[: first * size]
        if not parent or parent in self.tiers:
            for end in ends:
                self.tiers.setdefault(prompt[:end], set()).add(medium)
        token_ids = array("I", prompt[first * size : ends[-1]])
        hashes = tuple(hash_of(prompt[:end]) for end in ends)
        return BlocksStored(hashes, hash_of(parent) if parent else None, token_ids, size, medium=medium)

    def remove(self, prefix: Prefix, medium: str) -> BlocksRemoved:
        """Drop a block from a tier."""
        self.tiers.get(prefix, set()).discard(medium)
        if not self.tiers.get(prefix, {"kept"}):
            del self.tiers[prefix]
        return BlocksRemoved((hash_of(prefix), -1), medium)

    def walk(self, prompt: Prefix) -> int:
        """Return the prompt's tokens that are held on any tier, in whole blocks of the engine."""
        ends = range(self.block_size, len(prompt) + 1, self.block_size)
        held = takewhile(bool, (self.tiers.get(prompt[:end]) for end in ends))
        return sum(1 for _ in held) * self.block_size


PATHS = ([0] * 12, [0] * 2 + [1] * 10, [0] * 5 + [1] * 7, [0] * 8 + [1] * 4)
PROMPTS = st.sampled_from(PATHS).map(prompt_of)
FIRSTS = st.sampled_from((0, 0, 0, 0, 1, 2, 3))
STEPS = st.lists(
    st.tuples(st.sampled_from("SSSRRRCM"), PROMPTS, FIRSTS, st.integers(1, 8), st.sampled_from(MEDIA)),
    min_size=6,
    max_size=20,
)


@pytest.mark.timeout(60)
def take(residency: Residency, mirror: RankBlocks) -> None:
    """Bring a mirror up to date."""
    for change in residency.drain():
        mirror.apply(change.delta)


@settings(max_examples=80, deadline=None)
@given(st.sampled_from([16, 32, 48, 8, 5, 24, 40, 1]), STEPS, st.integers(0, 25))
def test_counts_as_the_model_does(block_size: int, steps: list[Step], hand_over: int) -> None:
    """After any events, deltas give a mirror the model's hit of every prompt, before and after a hand-over.

    Where an engine's blocks are not whole own blocks the hit may be one block short, never long.
    """
    check_against_the_model(block_size, steps, hand_over)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([16, 32, 8, 24]), STEPS, st.integers(0, 25), st.integers(1, 3))
def test_counts_as_the_model_does_in_small_steps(
    block_size: int, steps: list[Step], hand_over: int, at_once: int
) -> None:
    """Wherever events are cut, cascades are left for later and changes are handed on in parts, all is the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gateway.index.residency._STEP_BLOCKS", at_once)
        patch.setattr("gateway.index.residency._PART_BLOCKS", at_once)
        patch.setattr("gateway.index.block_tree.SETTLED_AT_ONCE", 1)
        check_against_the_model(block_size, steps, hand_over)


def check_against_the_model(block_size: int, steps: list[Step], hand_over: int) -> None:
    """Let model and residency take the same events, and compare them after each."""
    model, mirror = Model(block_size), RankBlocks()
    residency = Residency(lambda lora, salt: SEED, Counter(), records=True)
    records: dict[bytes, bytes] = {}
    for number, (kind, prompt, first, count, medium) in enumerate(steps):
        event: BlocksStored | BlocksRemoved | BlocksCleared | None
        match kind:
            case "S":
                event = model.store(prompt, first, count, medium)
            case "R":
                event = model.remove(prompt[: (first + 1) * block_size], medium)
            case "C":
                model.tiers.clear()
                event = BlocksCleared()
            case _:
                for prefix in list(model.tiers):
                    model.remove(prefix, medium)
                event = BlocksCleared(medium)
        residency.apply(EventBatch(0, (event,) if event else (), 0))
        for change in residency.drain():
            mirror.apply(change.delta)
            if change.delta.clear:
                records.clear()
            records.update(change.saved)
            for name in change.dropped:
                records.pop(name, None)
        if number == hand_over and residency.restorable:
            residency = Residency(lambda lora, salt: SEED, Counter(), records=True)
            residency.restore(sorted(records.items()))
            assert not sum(len(change.delta) for change in residency.drain())
        for path in PATHS:
            wanted = prompt_of(path)
            tokens = model.walk(wanted)
            hit = mirror.walk(hash_blocks(wanted, SEED)[::-1]) * BLOCK_TOKENS // block_size * block_size
            assert tokens // BLOCK_TOKENS * BLOCK_TOKENS // block_size * block_size <= hit <= tokens
    fresh = RankBlocks()
    for part in residency.snapshot():
        fresh.apply(part.delta)
    assert fresh == mirror
    assert residency.size == len(mirror.held)


@pytest.mark.timeout(60)
@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 4), st.integers(0, 4), st.integers(0, 2)), max_size=30))
def test_contradictions_do_no_harm(steps: list[tuple[bool, int, int, int]]) -> None:
    """Whatever hashes, parents and contents claim, nothing raises, and a clear leaves nothing behind."""
    for size in (5, 16, 24):
        residency = Residency(lambda lora, salt: SEED, Counter(), records=True)
        for is_stored, block_hash, parent, content in steps:
            tokens = array("I", [content] * size * 2)
            run = BlocksStored((block_hash, block_hash + 1), parent or None, tokens, size)
            event: BlocksStored | BlocksRemoved = run if is_stored else BlocksRemoved((block_hash, parent))
            residency.apply(EventBatch(0, (event,), 0))
            residency.drain()
        everything = BlocksRemoved(tuple(range(7)))
        residency.apply(EventBatch(0, (everything,), 0))
        residency.drain()
        assert not any(len(part.delta) for part in residency.snapshot())


@pytest.mark.parametrize("size", [32, 24, 20])
def test_engine_blocks_that_begin_alike_do_not_take_each_other_away(size: int) -> None:
    """The own block that two engine blocks have in common stays until both are gone."""
    residency, mirror = Residency(lambda lora, salt: SEED, Counter()), RankBlocks()
    heads = [array("I", [1] * 16 + [last] * (size - 16)) for last in (2, 3)]
    stored = tuple(BlocksStored((number,), None, tokens, size) for number, tokens in enumerate(heads))
    for event, own_blocks in (
        (stored[0], 1),
        (stored[1], 1),
        (BlocksRemoved((1,)), 1),
        (stored[1], 1),
        (BlocksRemoved((0,)), 1),
    ):
        residency.apply(EventBatch(0, (event,), 0))
        take(residency, mirror)
        assert mirror.walk(hash_blocks(heads[0], SEED)[:1]) == own_blocks
    residency.apply(EventBatch(0, (BlocksRemoved((1,)),), 0))
    take(residency, mirror)
    assert mirror == RankBlocks()


def test_circle_of_parents_does_no_harm() -> None:
    """A block that is stored again as its own grandchild is taken, and goes like any other."""
    residency = Residency(lambda lora, salt: SEED, Counter())
    tokens = array("I", [0] * 10)
    for event in (
        BlocksStored((1, 2), None, tokens, 5),
        BlocksRemoved((1,)),
        BlocksStored((1, 5), 2, tokens, 5),
        BlocksStored((4,), 1, tokens, 10),
    ):
        residency.apply(EventBatch(0, (event,), 0))
    residency.apply(EventBatch(0, (BlocksRemoved((1, 2, 4, 5)),), 0))
    assert not any(len(part.delta) for part in residency.snapshot())


def test_same_hash_twice_in_an_event_is_refused() -> None:
    """A block cannot follow itself."""
    counters: Counter[str] = Counter()
    residency = Residency(lambda lora, salt: SEED, counters)
    residency.apply(EventBatch(0, (BlocksStored((1, 1), None, array("I", range(32)), 16),), 0))
    assert not sum(len(change.delta) for change in residency.drain())
    assert counters["opaque_blocks"] == 2


def test_blocks_beyond_the_limit_are_left_out() -> None:
    """A flood of blocks is cut off; what was there before still counts."""
    residency = Residency(lambda lora, salt: SEED, Counter(), limit=2)
    residency.apply(EventBatch(0, (BlocksStored((1, 2), None, array("I", range(32)), 16),), 0))
    residency.apply(EventBatch(0, (BlocksStored((3,), 2, array("I", range(16)), 16),), 0))
    assert sum(len(change.delta) for change in residency.drain()) == 2


@pytest.mark.parametrize("children", [1, 2, 3])
def test_children_come_back_with_their_parent(children: int) -> None:
    """Blocks after a removed one count again once it is stored again, however many there are."""
    residency, mirror = Residency(lambda lora, salt: SEED, Counter()), RankBlocks()
    root = BlocksStored((1,), None, array("I", range(16)), 16)
    leaves = [BlocksStored((10 + i,), 1, array("I", [i] * 16), 16) for i in range(children)]
    residency.apply(EventBatch(0, (root, *leaves, BlocksRemoved((1,))), 0))
    take(residency, mirror)
    assert mirror == RankBlocks()
    residency.apply(EventBatch(0, (BlocksRemoved((10,)), root), 0))
    take(residency, mirror)
    assert len(mirror.held) == children
    residency.apply(EventBatch(0, tuple(BlocksRemoved((10 + i,)) for i in range(children)), 0))
    take(residency, mirror)
    assert len(mirror.held) == 1


def test_delta_is_applied_once_or_twice() -> None:
    """Applying a delta again changes nothing; a clear takes all that was there before."""
    blocks = RankBlocks({1, 2, 3})
    delta = CacheDelta(False, [4, 1], [3])
    for _ in range(2):
        blocks.apply(delta)
        assert blocks == RankBlocks({1, 2, 4})
    blocks.apply(CacheDelta(True, [9]))
    assert blocks == RankBlocks({9})


def test_a_large_event_is_taken_in_steps_and_handed_on_in_parts() -> None:
    """Nothing takes longer with more blocks in one event, behind one block, or changed since the last look."""
    residency, mirror, blocks = Residency(lambda lora, salt: SEED, Counter(), records=True), RankBlocks(), 20_000
    run = BlocksStored(tuple(range(blocks)), None, array("I", range(16 * blocks)), 16)
    assert sum(1 for _ in residency.steps(EventBatch(0, (run,), 0))) >= 20
    parts = list(residency.drain())
    assert len(parts) == 5 and max(len(part.delta) + len(part.saved) for part in parts) <= 2 * 4096
    for part in parts:
        mirror.apply(part.delta)
    assert len(mirror.held) == residency.size == blocks
    assert sum(1 for _ in residency.steps(EventBatch(0, (BlocksRemoved((0,)),), 0))) >= 20
    take(residency, mirror)
    assert residency.size == 0 and mirror == RankBlocks()


def test_blocks_of_a_large_event_that_have_no_meaning_here_are_counted_once() -> None:
    """Where a run ends at a block whose extra keys say nothing, the blocks before it are taken, also across steps."""
    for bad in (0, 1, 1024, 1500, 2999):
        counters: Counter[str] = Counter()
        residency = Residency(lambda lora, salt: SEED, counters)
        keys = [["?"] if at == bad else None for at in range(3000)] if bad else [["a", "b"]] + [None] * 2999
        run = BlocksStored(tuple(range(3000)), None, array("I", range(48_000)), 16, extra_keys=keys)
        residency.apply(EventBatch(0, (run,), 0))
        assert (residency.size, counters["opaque_blocks"]) == (bad, 3000 - bad)
