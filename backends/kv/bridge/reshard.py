"""KV of one tensor-parallel size made KV of another: pure, and only bytes.

LMCache cuts a chunk among the ranks of an engine by KV heads, each rank's shard being a string of its own. A shard is a
table of rows. Its layouts:

``packed``  a row for each layer and token; in it each head's keys and values side by side. vLLM since 0.29 with LMCache
            as a server.
``split``   a row for each layer and token of the keys, then as many of the values; in each the heads. LMCache inside
            the engine (its KV_2LTD), and older engines.
``latent``  MLA: one vector that all heads share. Every rank has all of it and LMCache keeps it once: there is nothing
            to regroup.

Heads are contiguous, in rank order. An engine with more ranks than heads has each head on several neighbouring ranks;
of such copies one is read.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from backends.types import KvShape

_Bytes = bytes | bytearray | memoryview


class LayoutRefused(ValueError):
    """KV of this shape cannot be regrouped; the message says why."""


@dataclass(frozen=True, slots=True)
class HeadRun:
    """Neighbouring heads of a new shard that come from one old one."""

    source: int
    source_head: int
    dest_head: int
    heads: int


@dataclass(frozen=True, slots=True)
class Regrouping:
    """How some shards of a chunk become the shards that other ranks want; each of ``runs`` is one new shard's."""

    rows: int
    cell_bytes: int
    """What a head has in a row."""
    source_heads: int
    dest_heads: int
    runs: tuple[tuple[HeadRun, ...], ...]

    @property
    def source_bytes(self) -> int:
        """Size of an old shard."""
        return self.rows * self.source_heads * self.cell_bytes

    @property
    def dest_bytes(self) -> int:
        """Size of a new shard."""
        return self.rows * self.dest_heads * self.cell_bytes

    def apply(self, shards: Sequence[_Bytes]) -> list[memoryview]:
        """Make the new shards. Raises LayoutRefused for shards of another size."""
        cell = self.cell_bytes
        tables = [self._table(shard) for shard in shards]
        made = []
        for runs in self.runs:
            table = np.empty((self.rows, self.dest_heads * cell), np.uint8)
            for run in runs:
                old = slice(run.source_head * cell, (run.source_head + run.heads) * cell)
                new = slice(run.dest_head * cell, (run.dest_head + run.heads) * cell)
                table[:, new] = tables[run.source][:, old]
            made.append(table.reshape(-1).data)
        return made

    def _table(self, shard: _Bytes) -> "np.ndarray[tuple[int, int], np.dtype[np.uint8]]":
        if len(shard) != self.source_bytes:
            raise LayoutRefused(f"a shard of {len(shard)} bytes, where the KV's shape makes {self.source_bytes}")
        return np.frombuffer(shard, np.uint8).reshape(self.rows, self.source_heads * self.cell_bytes)


@dataclass(frozen=True, slots=True)
class Lot:
    """The smallest part of a chunk that is regrouped by itself: what it reads, and for whom it makes which shard."""

    source_ranks: tuple[int, ...]
    dest_ranks: tuple[int, ...]
    made: tuple[int, ...]
    """For each of ``dest_ranks`` which of the made shards is its own: ranks that hold the same head share one."""
    regrouping: Regrouping


def plan_lots(shape: KvShape, chunk_tokens: int, source_world: int, dest_world: int) -> list[Lot]:
    """How each chunk's shards are regrouped. Raises LayoutRefused."""
    if shape.layout == "latent":
        raise LayoutRefused("a latent (MLA) is not cut among ranks: give both sides one rank")
    old, new = _Cut.of(shape.heads, source_world), _Cut.of(shape.heads, dest_world)
    planes = 2 if shape.layout == "split" else 1
    parts = math.gcd(old.parts, new.parts)
    reads, makes = old.parts // parts, new.parts // parts
    regrouping = Regrouping(
        rows=planes * shape.layers * chunk_tokens,
        cell_bytes=shape.head_bytes * 2 // planes,
        source_heads=old.heads,
        dest_heads=new.heads,
        runs=tuple(tuple(_runs(number * new.heads, new.heads, old.heads)) for number in range(makes)),
    )
    return [
        Lot(
            tuple(part * old.copies for part in range(lot * reads, (lot + 1) * reads)),
            tuple(range(lot * makes * new.copies, (lot + 1) * makes * new.copies)),
            tuple(number // new.copies for number in range(makes * new.copies)),
            regrouping,
        )
        for lot in range(parts)
    ]


@dataclass(frozen=True, slots=True)
class _Cut:
    """Heads of a model among ranks: ``parts`` different shards of ``heads`` heads, each on ``copies`` ranks."""

    parts: int
    heads: int
    copies: int

    @classmethod
    def of(cls, heads: int, world: int) -> "_Cut":
        parts = min(heads, world)
        if heads % parts or world % parts:
            raise LayoutRefused(f"{heads} KV heads cannot be cut evenly among {world} ranks")
        return cls(parts, heads // parts, world // parts)


def _runs(first: int, heads: int, old_heads: int) -> Iterator[HeadRun]:
    """Where the heads from ``first`` on come from, in old shards of ``old_heads`` each."""
    head = first
    while head < first + heads:
        source, inside = divmod(head, old_heads)
        count = min(old_heads - inside, first + heads - head)
        yield HeadRun(source, inside, head - first, count)
        head += count
