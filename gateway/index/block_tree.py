"""Own blocks of one rank, each after its parent, and what they count as.

A block counts for no more than the block before it: where a chain is broken, what follows can serve no prompt.
"""

from collections.abc import Iterator, Mapping
from itertools import islice

import msgspec

from gateway.index.mirror import DEVICE, GONE, LOWER, CacheDelta, KeySets

ROOT = -1
"""Stands for the key before the first block of a prompt."""


class _Node(msgspec.Struct, gc=False):
    """``held``: the tier that the block is in; ``level``: what it counts as, given those before it.

    There may be millions, which the garbage collector must not visit: that would stall the event loop.
    """

    parent: int = ROOT
    held: int = GONE
    level: int = GONE


class BlockTree:
    """Blocks by key. Levels are GONE < LOWER < DEVICE; changes of levels are collected until ``drain``."""

    def __init__(self) -> None:
        self._nodes: dict[int, _Node] = {}
        self._children: KeySets[int] = KeySets()
        self._changes: dict[int, int] = {}
        self._cleared = False
        self._sizes = [0, 0, 0]

    def __len__(self) -> int:
        return len(self._nodes)

    def hold(self, key: int, parent: int, held: int) -> None:
        """Say where a block is. A block whose parent is not held counts once the parent is."""
        node = self._nodes.get(key)
        if node is None:
            if held == GONE:
                return
            node = self._nodes[key] = _Node()
        if node.parent != parent:
            self._children.discard(node.parent, key)
            node.parent = parent
            if parent != ROOT:
                # A parent that is gone is an empty node for as long as it has children.
                self._nodes.setdefault(parent, _Node())
                self._children.add(parent, key)
        node.held = held
        self._settle(key)
        if held == GONE:
            self._prune(key)

    def clear(self) -> None:
        """Forget every block."""
        self._nodes.clear()
        self._children.clear()
        self._changes.clear()
        self._cleared = True
        self._sizes = [0, 0, 0]

    def drain(self) -> CacheDelta:
        """Return what changed since the last call."""
        changes, self._changes = self._changes, {}
        clear, self._cleared = self._cleared, False
        return _by_level(changes, clear)

    def snapshot(self, most: int) -> Iterator[CacheDelta]:
        """Yield all that counts in parts of at most ``most`` blocks, after a delta that clears.

        The tree may change between the parts; ``drain`` then has the changes.
        """
        yield CacheDelta(clear=True)
        keys = iter(list(self._nodes))
        while part := list(islice(keys, most)):
            nodes = ((key, self._nodes.get(key)) for key in part)
            yield _by_level({key: node.level for key, node in nodes if node is not None and node.level}, clear=False)

    def sizes(self) -> tuple[int, int]:
        """Return how many blocks count as on device, and how many as in a slower tier only."""
        return self._sizes[DEVICE], self._sizes[LOWER]

    def _settle(self, key: int) -> None:
        """Recompute what ``key`` counts as, then its descendants where that changed."""
        pending = [key]
        while pending:
            key = pending.pop()
            node = self._nodes[key]
            level = min(node.held, DEVICE if node.parent == ROOT else self._nodes[node.parent].level)
            if level == node.level:
                continue
            self._sizes[node.level] -= 1
            self._sizes[level] += 1
            node.level = level
            self._changes[key] = level
            pending.extend(self._children.of(key))

    def _prune(self, key: int) -> None:
        """Forget ``key`` and the empty nodes above that only led to it."""
        while (node := self._nodes.get(key)) and node.held == GONE and key not in self._children:
            del self._nodes[key]
            self._children.discard(node.parent, key)
            key = node.parent


def _by_level(levels: Mapping[int, int], clear: bool) -> CacheDelta:
    lists: dict[int, list[int]] = {DEVICE: [], LOWER: [], GONE: []}
    for key, level in levels.items():
        lists[level].append(key)
    return CacheDelta(clear, lists[DEVICE], lists[LOWER], lists[GONE])
