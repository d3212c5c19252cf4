"""Own blocks of one rank, each after its parent, and which of them count.

A block counts while it and all blocks before it are held: where a chain is broken, what follows can serve no prompt.
"""

from collections.abc import Iterator
from itertools import islice

import msgspec

from gateway.index.mirror import CacheDelta, KeySets

ROOT = -1
"""Stands for the key before the first block of a prompt."""


class _Node(msgspec.Struct, gc=False):
    """``counts``: whether it is held, and so are all before it.

    There may be millions, which the garbage collector must not visit: that would stall the event loop.
    """

    parent: int = ROOT
    held: bool = False
    counts: bool = False


class BlockTree:
    """Blocks by key. Changes of what counts are collected until ``drain``."""

    def __init__(self) -> None:
        self._nodes: dict[int, _Node] = {}
        self._children: KeySets[int] = KeySets()
        self._changes: dict[int, bool] = {}
        self._cleared = False
        self.size = 0
        """How many blocks count."""

    def __len__(self) -> int:
        return len(self._nodes)

    def hold(self, key: int, parent: int, held: bool) -> None:
        """Say whether a block is there. A block whose parent is not held counts once the parent is."""
        node = self._nodes.get(key)
        if node is None:
            if not held:
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
        if not held:
            self._prune(key)

    def clear(self) -> None:
        """Forget every block."""
        self._nodes.clear()
        self._children.clear()
        self._changes.clear()
        self._cleared = True
        self.size = 0

    def drain(self) -> CacheDelta:
        """Return what changed since the last call."""
        changes, self._changes = self._changes, {}
        clear, self._cleared = self._cleared, False
        held = [key for key, counts in changes.items() if counts]
        return CacheDelta(clear, held, [key for key, counts in changes.items() if not counts])

    def snapshot(self, most: int) -> Iterator[CacheDelta]:
        """Yield all that counts in parts of at most ``most`` blocks, after a delta that clears.

        The tree may change between the parts; ``drain`` then has the changes.
        """
        yield CacheDelta(clear=True)
        keys = iter(list(self._nodes))
        while part := list(islice(keys, most)):
            nodes = ((key, self._nodes.get(key)) for key in part)
            yield CacheDelta(held=[key for key, node in nodes if node is not None and node.counts])

    def _settle(self, key: int) -> None:
        """Find out again whether ``key`` counts, then its descendants where that changed."""
        pending = [key]
        while pending:
            key = pending.pop()
            node = self._nodes[key]
            counts = node.held and (node.parent == ROOT or self._nodes[node.parent].counts)
            if counts == node.counts:
                continue
            self.size += 1 if counts else -1
            node.counts = self._changes[key] = counts
            pending.extend(self._children.of(key))

    def _prune(self, key: int) -> None:
        """Forget ``key`` and the empty nodes above that only led to it."""
        while (node := self._nodes.get(key)) and not node.held and key not in self._children:
            del self._nodes[key]
            self._children.discard(node.parent, key)
            key = node.parent
