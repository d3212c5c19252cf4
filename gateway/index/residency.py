"""From one rank's engine events to the blocks that count: engine blocks become own blocks, chained from the start.

Engines name blocks by their own hashes and cut prompts into blocks of their own size. An own block is there when every
engine block that holds a part of it is, and it counts only while each own block before it counts: a block whose chain
is broken can serve no prompt. What changes in what counts is collected as deltas.
"""

from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from backends.hashing import BLOCK_TOKENS, block_keys, chain_digests
from backends.kv_events import BlockHash, Cleared, EventBatch, Removed, Stored
from gateway.index.engine_blocks import ROOT, Change, EngineBlock, pack_block, pack_hash, unpack_block, unpack_hash
from gateway.index.mirror import DEVICE, GONE, LOWER, Delta

_DEVICE_BIT = 1
_TIER_BITS = {"GPU": _DEVICE_BIT, "CPU": 2, "DISK": 4, "STORAGE": 4}
_OTHER_TIER_BIT = 8
_DENSE_KINDS = frozenset({"full_attention", "mla_attention", "sink_full_attention"})


@dataclass(slots=True)
class _Node:
    """An own block. ``owners`` are the engine blocks that hold its tokens; ``level`` is what it counts as."""

    parent: int
    owners: tuple[BlockHash, ...]
    children: tuple[int, ...] = ()
    tiers: int = 0
    level: int = GONE


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
        self._blocks: dict[BlockHash, EngineBlock] = {}
        self._nodes: dict[int, _Node] = {}
        self._spanning: dict[BlockHash, set[int]] = {}
        self._dense_groups: set[int] = set()
        self._changes: dict[int, int] = {}
        self._cleared = False
        self._records = records
        self._touched: set[BlockHash] = set()
        self.restorable = True
        """False once an engine block ended inside an own block: a record would have to hold its token ids."""

    def apply(self, batch: EventBatch) -> None:
        """Apply the events of a batch in order."""
        for event in batch.events:
            match event:
                case Stored():
                    self._store(event)
                case Removed():
                    self._remove(event)
                case Cleared(medium=None):
                    self.clear()
                case Cleared(medium=medium):
                    for block_hash in list(self._blocks):
                        self._drop_tier(block_hash, _tier_bit(medium))

    def drain(self) -> Change:
        """Return what changed since the last call."""
        changes, self._changes = self._changes, {}
        touched, self._touched = self._touched, set()
        clear, self._cleared = self._cleared, False
        return self._change(_by_level(changes, clear), touched)

    def snapshot(self) -> Change:
        """Return everything, as a change that replaces what was there."""
        levels = {key: node.level for key, node in self._nodes.items() if node.level}
        return self._change(_by_level(levels, clear=True), self._blocks.keys())

    def sizes(self) -> tuple[int, int]:
        """Return how many own blocks count as on device, and how many as in a slower tier only."""
        levels = Counter(node.level for node in self._nodes.values())
        return levels[DEVICE], levels[LOWER]

    def restore(self, records: Iterable[tuple[bytes, bytes]]) -> None:
        """Take blocks back from their records, in any order; they are no change."""
        for name, record in records:
            block_hash = unpack_hash(name)
            parent, block = unpack_block(record)
            self._blocks[block_hash] = block
            for key in block.keys:
                self._link(key, parent, (block_hash,))
                parent = key
            self._refresh(block_hash, block)
        self.drain()

    def _change(self, delta: Delta, touched: Collection[BlockHash]) -> Change:
        if not (self._records and self.restorable):
            return Change(delta)
        saved, dropped = {}, []
        for block_hash in touched:
            block = self._blocks.get(block_hash)
            if block is None:
                dropped.append(pack_hash(block_hash))
            else:
                saved[pack_hash(block_hash)] = pack_block(self._nodes[block.keys[0]].parent, block)
        return Change(delta, saved, dropped)

    def clear(self) -> None:
        """Forget every block; the next delta says so."""
        self._blocks.clear()
        self._nodes.clear()
        self._spanning.clear()
        self._changes.clear()
        self._touched.clear()
        self._cleared = True

    def _store(self, event: Stored) -> None:
        if event.remote or not self._is_dense(event.group, event.kind):
            self._counters["ignored_blocks"] += len(event.hashes)
            return
        if event.lora_id is not None and event.lora_name is None:
            self._counters["opaque_blocks"] += len(event.hashes)
            return
        parent = None if event.parent is None else self._blocks.get(event.parent)
        if event.parent is not None and parent is None:
            self._counters["orphan_blocks"] += len(event.hashes)
            return
        bit = _tier_bit(event.medium)
        for position, block_hash in enumerate(event.hashes):
            block = self._blocks.get(block_hash)
            if block is None:
                parent = self._start_chain(event) if parent is None else parent
                if parent is None or not self._add_run(event, position, parent):
                    self._counters["opaque_blocks"] += len(event.hashes) - position
                    return
                block = self._blocks[block_hash]
            block.tiers |= bit
            self._refresh(block_hash, block)
            parent = block

    def _start_chain(self, event: Stored) -> EngineBlock | None:
        """Return the empty block before the first one; None when its extra keys have a meaning not known here."""
        match _extra_keys(event, 0):
            case []:
                seed = self._seed_of(event.lora_name, None)
            case [str(salt)]:
                seed = self._seed_of(event.lora_name, salt)
            case _:
                return None
        return EngineBlock([], ROOT, seed, array("I"), ())

    def _add_run(self, event: Stored, first: int, parent: EngineBlock) -> bool:
        """Chain the new blocks from position ``first`` on to ``parent``; False when not even one can be."""
        last = first
        while last < len(event.hashes) and event.hashes[last] not in self._blocks:
            starts_chain = last == 0 and event.parent is None
            if not starts_chain and _extra_keys(event, last):
                break
            last += 1
        if last == first or len(self._nodes) >= self._limit:
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
            own_keys, previous, owners = keys[done:full], parent.tail_key, (*parent.rest_owners, block_hash)
            for key in own_keys:
                self._link(key, previous, owners)
                previous, owners = key, (block_hash,)
            digest = digests[full - 1] if full else parent.digest
            rest = tokens[full * BLOCK_TOKENS : end]
            parent = EngineBlock(own_keys, previous, digest, rest, owners if rest else ())
            self._blocks[block_hash] = parent
            done = full
        return True

    def _link(self, key: int, parent: int, owners: tuple[BlockHash, ...]) -> None:
        node = self._nodes.get(key)
        if node is None:
            node = self._nodes[key] = _Node(ROOT, owners)
        node.owners = owners
        if node.parent != parent:
            self._detach(key, node.parent)
            node.parent = parent
            # A parent that is gone leaves an empty node behind for as long as it has children.
            above = self._nodes.setdefault(parent, _Node(ROOT, ()))
            above.children = (*above.children, key)
        for owner in owners[:-1]:
            self._spanning.setdefault(owner, set()).add(key)

    def _detach(self, key: int, parent: int) -> None:
        above = self._nodes.get(parent)
        if above is not None:
            above.children = tuple(child for child in above.children if child != key)

    def _prune(self, key: int) -> None:
        """Forget ``key``, whose engine block is gone, and the empty nodes above that only led to it."""
        while (node := self._nodes.get(key)) and not node.children and not self._is_resident(node):
            for owner in node.owners[:-1]:
                keys = self._spanning[owner]
                keys.discard(key)
                if not keys:
                    del self._spanning[owner]
            del self._nodes[key]
            self._detach(key, node.parent)
            key = node.parent

    def _is_resident(self, node: _Node) -> bool:
        return bool(node.owners) and node.owners[-1] in self._blocks

    def _remove(self, event: Removed) -> None:
        if event.remote or not self._is_dense(event.group, None):
            self._counters["ignored_blocks"] += len(event.hashes)
            return
        bit = _tier_bit(event.medium)
        for block_hash in event.hashes:
            self._drop_tier(block_hash, bit)

    def _drop_tier(self, block_hash: BlockHash, bit: int) -> None:
        block = self._blocks.get(block_hash)
        if block is None:
            self._counters["unknown_removals"] += 1
            return
        block.tiers &= ~bit
        if not block.tiers:
            del self._blocks[block_hash]
        self._refresh(block_hash, block)

    def _refresh(self, block_hash: BlockHash, block: EngineBlock) -> None:
        """Bring the own blocks in line that lie in an engine block whose tiers changed."""
        if self._records:
            self._touched.add(block_hash)
        for key in block.keys:
            self._set_tiers(key)
        if block_hash in self._spanning:
            for key in list(self._spanning[block_hash]):
                self._set_tiers(key)

    def _set_tiers(self, key: int) -> None:
        node = self._nodes.get(key)
        if node is None:
            return
        tiers = -1
        for owner in node.owners:
            block = self._blocks.get(owner)
            tiers &= block.tiers if block is not None else 0
        node.tiers = tiers
        self._settle(key)
        if not tiers:
            self._prune(key)

    def _settle(self, key: int) -> None:
        """Recompute what ``key`` counts as, then its descendants where that changed."""
        pending = [key]
        while pending:
            key = pending.pop()
            node = self._nodes[key]
            above = DEVICE if node.parent == ROOT else self._nodes[node.parent].level
            if not node.tiers or above == GONE:
                level = GONE
            else:
                level = DEVICE if node.tiers & _DEVICE_BIT and above == DEVICE else LOWER
            if level != node.level:
                node.level = level
                self._changes[key] = level
                pending.extend(node.children)

    def _is_dense(self, group: int | None, kind: str | None) -> bool:
        """Whether blocks of this KV group say what a whole prefix costs; removals carry no kind, so it is learnt."""
        if kind is not None:
            if kind not in _DENSE_KINDS:
                return False
            if group is not None:
                self._dense_groups.add(group)
            return True
        return group is None or group in (self._dense_groups or (0,))


def _tier_bit(medium: str | None) -> int:
    return _DEVICE_BIT if medium is None else _TIER_BITS.get(medium.upper(), _OTHER_TIER_BIT)


def _extra_keys(event: Stored, position: int) -> list[object]:
    """Return what, besides tokens and adapter, went into the engine's hash of a block."""
    extra = event.extra_keys[position] if event.extra_keys is not None else None
    if extra is None:
        return []
    if not isinstance(extra, list):
        return [None]
    return extra[1:] if event.lora_name is not None and extra[:1] == [event.lora_name] else extra


def _by_level(levels: dict[int, int], clear: bool) -> Delta:
    lists: dict[int, list[int]] = {DEVICE: [], LOWER: [], GONE: []}
    for key, level in levels.items():
        lists[level].append(key)
    return Delta(clear, lists[DEVICE], lists[LOWER], lists[GONE])
