"""From one rank's engine events to own blocks.

Engines name blocks by their own hashes and cut prompts into blocks of their own size. An own block is there when every
engine block that holds a part of it is, in whatever tier; ``gateway.index.block_tree`` tells whether it then counts.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

from backends.kv.events import BlocksCleared, BlocksRemoved, BlocksStored, EngineBlockHash, EventBatch
from gateway.index.block_tree import ROOT, BlockTree
from gateway.index.engine_blocks import (
    NO_TOKENS,
    Change,
    EngineBlock,
    pack_block,
    pack_hash,
    unpack_block,
    unpack_hash,
)
from gateway.index.hashing import BLOCK_TOKENS, block_keys, chain_digests
from gateway.index.leftovers import let_go
from gateway.index.mirror import CacheDelta, KeySets

_PART_BLOCKS = 4096
_STEP_BLOCKS = 1024
"""What is done before others may run: some milliseconds."""
_DEVICE_BIT = 1
_TIER_BITS = {"GPU": _DEVICE_BIT, "CPU": 2, "DISK": 4, "STORAGE": 4}
_OTHER_TIER_BIT = 8
"""Where an engine block is. It is gone when it has left the last tier, and engines tell of each tier by itself."""
_DENSE_KINDS = frozenset({"full_attention", "mla_attention", "sink_full_attention"})


class Residency:
    """Blocks of one rank of one engine process.

    ``seed_of(lora, salt)`` gives the chain's start. ``records``: changes come with records that ``restore`` takes.
    ``limit``: own blocks beyond it are not taken, which only makes hits look shorter. ``counters`` is counted up only.
    """

    def __init__(
        self,
        seed_of: Callable[[str | None, str | None], bytes],
        counters: Counter[str],
        *,
        records: bool = False,
        limit: int = 4_000_000,
    ) -> None:
        self._seed_of = seed_of
        self._counters = counters
        self._limit = limit
        self._tree = BlockTree()
        self._blocks: dict[EngineBlockHash, EngineBlock] = {}
        # Engine blocks that end with or after an own block. Where one ends right with it, it is the only one, and is
        # left out: engine blocks that begin alike have their first own blocks in common, but not the last.
        self._enders: KeySets[EngineBlockHash] = KeySets()
        # Own blocks that begin in earlier engine blocks: the own key before them and those blocks, and the way back.
        self._spanning: dict[int, tuple[int, tuple[EngineBlockHash, ...]]] = {}
        self._spanned: dict[EngineBlockHash, set[int]] = {}
        self._dense_groups: set[int] = set()
        self._records = records
        self._touched: set[EngineBlockHash] = set()
        self.restorable = True
        """False once an engine block ended inside an own block: a record would have to hold its token ids."""

    def apply(self, batch: EventBatch) -> None:
        """Apply all of a batch."""
        for _ in self.steps(batch):
            pass

    def steps(self, batch: EventBatch) -> Iterator[None]:
        """Apply a batch in steps, between which the caller may let others run; nothing else may change this then."""
        for event in batch.events:
            for _ in self._steps_of(event):
                yield
                while self._tree.settle(_STEP_BLOCKS):
                    yield

    def _steps_of(self, event: BlocksStored | BlocksRemoved | BlocksCleared) -> Iterator[None]:
        match event:
            case BlocksStored():
                yield from self._store(event)
            case BlocksRemoved():
                yield from self._remove(event)
            case BlocksCleared(medium=None):
                self.clear()
                yield
            case BlocksCleared(medium=medium):
                yield from self._drop_tiers(list(self._blocks), _tier_bit(medium))

    @property
    def is_cleared(self) -> bool:
        """Whether the next change says that every block went first."""
        return self._tree.is_cleared

    def drain(self) -> Iterator[Change]:
        """Return what changed since the last call, in parts; at least one. What changes meanwhile is for the next."""
        touched, self._touched = self._touched, set()
        return self._parts(self._tree.drain(_PART_BLOCKS), iter(touched))

    def snapshot(self) -> Iterator[Change]:
        """Yield everything in parts that together replace what was there; see ``BlockTree.snapshot``."""
        for delta in self._tree.snapshot(_PART_BLOCKS):
            yield Change(delta)
        if self._records:
            hashes = iter(list(self._blocks))
            while part := list(islice(hashes, _PART_BLOCKS)):
                yield self._change(CacheDelta(), part)

    @property
    def size(self) -> int:
        """How many own blocks count."""
        return self._tree.size

    def restore(self, records: Iterable[tuple[bytes, bytes]]) -> None:
        """Take blocks back from their records, in any order; they are no change."""
        for name, record in records:
            block_hash = unpack_hash(name)
            block = self._blocks[block_hash] = unpack_block(record)
            self._refresh(block_hash, block)
        while self._tree.settle(_STEP_BLOCKS):
            pass
        self.drain()

    def _parts(self, deltas: Iterator[CacheDelta], touched: Iterator[EngineBlockHash]) -> Iterator[Change]:
        for delta in deltas:
            yield self._change(delta, list(islice(touched, _PART_BLOCKS)))
        while part := list(islice(touched, _PART_BLOCKS)):
            yield self._change(CacheDelta(), part)

    def _change(self, delta: CacheDelta, touched: Collection[EngineBlockHash]) -> Change:
        if not (self._records and self.restorable):
            return Change(delta)
        saved, dropped = {}, []
        for block_hash in touched:
            block = self._blocks.get(block_hash)
            if block is None:
                dropped.append(pack_hash(block_hash))
            else:
                saved[pack_hash(block_hash)] = pack_block(block)
        return Change(delta, saved, dropped)

    def clear(self) -> None:
        """Forget every block; the next delta says so."""
        let_go(self._blocks, self._spanning, self._spanned, self._touched)
        self._blocks, self._spanning, self._spanned, self._touched = {}, {}, {}, set()
        self._enders.clear()
        self._tree.clear()

    def _store(self, event: BlocksStored) -> Iterator[None]:
        if event.remote or not self._is_dense(event.group, event.kind):
            self._counters["ignored_blocks"] += len(event.hashes)
            return
        nameless_adapter = event.lora_id is not None and event.lora_name is None
        if nameless_adapter or len(set(event.hashes)) < len(event.hashes):
            self._counters["opaque_blocks"] += len(event.hashes)
            return
        if event.parent is not None and event.parent not in self._blocks:
            self._counters["orphan_blocks"] += len(event.hashes)
            return
        stored = 0
        for part in _cut(event):
            taken = self._store_part(part)
            stored += taken
            if taken < len(part.hashes):
                self._counters["opaque_blocks"] += len(event.hashes) - stored
                return
            yield

    def _store_part(self, event: BlocksStored) -> int:
        """Store a run of blocks whose parent is there; how many of them could be."""
        parent = None if event.parent is None else self._blocks[event.parent]
        bit = _tier_bit(event.medium)
        for position, block_hash in enumerate(event.hashes):
            block = self._blocks.get(block_hash)
            if block is None:
                parent = self._start_chain(event) if parent is None else parent
                if parent is None or not self._add_run(event, position, parent):
                    return position
                block = self._blocks[block_hash]
            block.tiers |= bit
            self._refresh(block_hash, block)
            parent = block
        return len(event.hashes)

    def _start_chain(self, event: BlocksStored) -> EngineBlock | None:
        """Return the empty block before the first one; None when its extra keys have a meaning not known here."""
        match _extra_keys(event, 0):
            case []:
                seed = self._seed_of(event.lora_name, None)
            case [str(salt)]:
                seed = self._seed_of(event.lora_name, salt)
            case _:
                return None
        return EngineBlock(ROOT, (), ROOT, seed, NO_TOKENS, ())

    def _add_run(self, event: BlocksStored, first: int, parent: EngineBlock) -> bool:
        """Chain the new blocks from position ``first`` on to ``parent``; False when not even one can be."""
        last = first
        while last < len(event.hashes) and event.hashes[last] not in self._blocks:
            starts_chain = last == 0 and event.parent is None
            if not starts_chain and _extra_keys(event, last):
                break
            last += 1
        if last == first or len(self._tree) >= self._limit:
            return False
        size = event.block_size
        self.restorable &= size % BLOCK_TOKENS == 0
        tokens = parent.rest + event.token_ids[first * size : last * size]
        digests = chain_digests(tokens, parent.digest)
        keys = block_keys(digests)
        end, done = len(parent.rest), 0
        for block_hash in event.hashes[first:last]:
            end += size
            full = end // BLOCK_TOKENS
            own_keys, rest_owners = tuple(keys[done:full]), (*parent.rest_owners, block_hash)
            if own_keys:
                self._span(own_keys[0], parent.tail_key, parent.rest_owners)
                rest_owners = (block_hash,)
            digest = digests[full - 1] if full else parent.digest
            rest = tokens[full * BLOCK_TOKENS : end] if end % BLOCK_TOKENS else NO_TOKENS
            tail_key = own_keys[-1] if own_keys else parent.tail_key
            parent = EngineBlock(parent.tail_key, own_keys, tail_key, digest, rest, rest_owners if rest else ())
            self._blocks[block_hash] = parent
            done = full
        return True

    def _span(self, key: int, parent: int, owners: tuple[EngineBlockHash, ...]) -> None:
        """Record that an own block begins in the engine blocks ``owners``."""
        self._unspan(key)
        if owners:
            self._spanning[key] = parent, owners
        for owner in owners:
            self._spanned.setdefault(owner, set()).add(key)

    def _unspan(self, key: int) -> None:
        _, owners = self._spanning.pop(key, (ROOT, ()))
        for owner in set(owners):  # forged parents may make a circle
            keys = self._spanned[owner]
            keys.discard(key)
            if not keys:
                del self._spanned[owner]

    def _remove(self, event: BlocksRemoved) -> Iterator[None]:
        if event.remote or not self._is_dense(event.group, None):
            self._counters["ignored_blocks"] += len(event.hashes)
            return
        yield from self._drop_tiers(event.hashes, _tier_bit(event.medium))

    def _drop_tiers(self, hashes: Sequence[EngineBlockHash], bit: int) -> Iterator[None]:
        for at in range(0, len(hashes), _STEP_BLOCKS):
            for block_hash in hashes[at : at + _STEP_BLOCKS]:
                self._drop_tier(block_hash, bit)
            yield

    def _drop_tier(self, block_hash: EngineBlockHash, bit: int) -> None:
        block = self._blocks.get(block_hash)
        if block is None:
            self._counters["unknown_removals"] += 1
            return
        block.tiers &= ~bit
        if not block.tiers:
            del self._blocks[block_hash]
        self._refresh(block_hash, block)

    def _refresh(self, block_hash: EngineBlockHash, block: EngineBlock) -> None:
        """Bring the own blocks in line that lie in an engine block whose tiers changed."""
        if self._records:
            self._touched.add(block_hash)
        previous = block.parent_key
        for key in block.keys:
            if key != block.tail_key or block.rest or key in self._spanning:
                self._set_ender(key, block_hash)
                self._hold_by_enders(key, previous)
            else:
                self._tree.hold(key, previous, block_hash in self._blocks)
            previous = key
        for key in self._spanned.get(block_hash, ()):
            self._hold_by_enders(key, self._spanning[key][0])
        self._unspan_orphans(block)

    def _set_ender(self, key: int, block_hash: EngineBlockHash) -> None:
        if block_hash in self._blocks:
            self._enders.add(key, block_hash)
        else:
            self._enders.discard(key, block_hash)

    def _hold_by_enders(self, key: int, parent: int) -> None:
        held = key in self._enders
        if held and key in self._spanning:
            held = all(owner in self._blocks for owner in self._spanning[key][1])
        self._tree.hold(key, parent, held)

    def _unspan_orphans(self, block: EngineBlock) -> None:
        """Forget where the block's first own block begins when no engine block ends it any more."""
        if block.keys and block.keys[0] not in self._enders:
            self._unspan(block.keys[0])

    def _is_dense(self, group: int | None, kind: str | None) -> bool:
        """Whether blocks of this KV group say what a whole prefix costs; removals carry no kind, so it is learnt."""
        if kind is not None:
            if kind not in _DENSE_KINDS:
                return False
            if group is not None:
                self._dense_groups.add(group)
            return True
        return group is None or group in (self._dense_groups or (0,))


def _cut(event: BlocksStored) -> Iterator[BlocksStored]:
    """Yield an event in runs of at most ``_STEP_BLOCKS`` blocks, each after the one before."""
    if len(event.hashes) <= _STEP_BLOCKS:
        yield event
        return
    parent = event.parent
    for at in range(0, len(event.hashes), _STEP_BLOCKS):
        end = at + _STEP_BLOCKS
        hashes = event.hashes[at:end]
        extra_keys = None if event.extra_keys is None else event.extra_keys[at:end]
        token_ids = event.token_ids[at * event.block_size : end * event.block_size]
        yield replace(event, hashes=hashes, parent=parent, token_ids=token_ids, extra_keys=extra_keys)
        parent = hashes[-1]


def _tier_bit(medium: str | None) -> int:
    return _DEVICE_BIT if medium is None else _TIER_BITS.get(medium.upper(), _OTHER_TIER_BIT)


def _extra_keys(event: BlocksStored, position: int) -> list[object]:
    """Return what, besides tokens and adapter, went into the engine's hash of a block."""
    extra = event.extra_keys[position] if event.extra_keys is not None else None
    if extra is None:
        return []
    if not isinstance(extra, list):
        return [None]
    return extra[1:] if event.lora_name is not None and extra[:1] == [event.lora_name] else extra
