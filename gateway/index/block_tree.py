"""Own blocks of one rank, each after its parent, and which of them count.

A block counts while it and all blocks before it are held: where a chain is broken, what follows can serve no prompt.
"""

from collections.abc import Iterator
from itertools import islice

import msgspec

from gateway.index.leftovers import let_go
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


SETTLED_AT_ONCE = 16


class BlockTree:
    """Blocks by key. Changes of what counts are collected until ``drain``.

    A block that comes or goes may have any number of others behind it: they are settled a few at a time, the rest by
    ``settle``.
    """

    def __init__(self) -> None:
        self._nodes: dict[int, _Node] = {}
        self._children: KeySets[int] = KeySets()
        self._changes: dict[int, bool] = {}
        self._unsettled: list[int] = []
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
        self._unsettled.append(key)
        self.settle(SETTLED_AT_ONCE)
        if not held:
            self._prune(key)

    def clear(self) -> None:
        """Forget every block."""
        let_go(self._nodes, self._changes)
        self._nodes, self._changes = {}, {}
        self._children.clear()
        self._unsettled.clear()
        self._cleared = True
        self.size = 0

    @property
    def is_cleared(self) -> bool:
        """Whether every block was forgotten since the last ``drain``."""
        return self._cleared

    def drain(self, most: int) -> Iterator[CacheDelta]:
        """Return what changed since the last call, in parts of at most ``most`` blocks; at least one.

        All must be settled; what changes between the parts is for the next call.
        """
        changes, self._changes = self._changes, {}
        clear, self._cleared = self._cleared, False
        return _cut(changes, clear, most)

    def snapshot(self, most: int) -> Iterator[CacheDelta]:
        """Yield all that counts in parts of at most ``most`` blocks, after a delta that clears.

        The tree may change between the parts; ``drain`` then has the changes.
        """
        yield CacheDelta(clear=True)
        keys = iter(list(self._nodes))
        while part := list(islice(keys, most)):
            nodes = ((key, self._nodes.get(key)) for key in part)
            yield CacheDelta(held=[key for key, node in nodes if node is not None and node.counts])

    def settle(self, most: int) -> bool:
        """Find out again whether ``most`` blocks count, and those behind them; False when all is settled."""
        pending = self._unsettled
        for _ in range(most):
            if not pending:
                return False
            key = pending.pop()
            node = self._nodes.get(key)
            if node is None:
                continue
            counts = node.held and (node.parent == ROOT or self._nodes[node.parent].counts)
            if counts == node.counts:
                continue
            self.size += 1 if counts else -1
            node.counts = self._changes[key] = counts
            pending.extend(self._children.of(key))
        return bool(pending)

    def _prune(self, key: int) -> None:
        """Forget ``key`` and the empty nodes above that only led to it."""
        while (node := self._nodes.get(key)) and not node.held and key not in self._children:
            del self._nodes[key]
            self._children.discard(node.parent, key)
            key = node.parent


def _cut(changes: dict[int, bool], clear: bool, most: int) -> Iterator[CacheDelta]:
    items = iter(changes.items())
    for start in range(0, max(1, len(changes)), most):
        part = list(islice(items, most))
        held = [key for key, counts in part if counts]
        yield CacheDelta(clear and not start, held, [key for key, counts in part if not counts])
