"""Which chunk crosses the link next: the bridge's transfer scheduler. No I/O, no clock.

A transfer wants an ordered list of chunks. A chunk goes through ``unseen -> ready -> receiving -> writing -> done``:
unseen until the sending store is known to hold it, ready with its size, receiving while its bytes cross the link,
writing while the receiving store takes them. It falls back to ready when the connection broke, and to unseen when
the sending store lost it.

Rules:
- A chunk that several transfers want is one chunk: it crosses once, and counts for each of them.
- A transfer's chunks start in its own order; a chunk that is not ready holds back those after it.
- Each transfer has a priority class: ``waiting`` before ``relay`` before ``later``. It may change at any time. A chunk
  of a lower class starts only while no higher one has a chunk to start; what is under way ends. But a lower class that
  has a chunk to start gets a byte for every ``ONE_IN - 1`` that go to higher ones, so that it waits for not much more
  than so many times its chunk's size. A chunk that several classes want counts for the highest.
- Within a class tenants take turns by bytes and weights, and each tenant's transfers among themselves: ``turns``. A
  transfer is small when its missing chunks are at most ``small_bytes``.
- A fetch starts only while the bytes being received are within the caller's window and all held bytes within
  ``memory_bytes``. A chunk never waits for lack of room when nothing else is under way.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import get_args

from backends.kv.bridge.turns import Head, Standing, Turns
from backends.kv.bridge.types import ChunkFetch, ChunkId, TransferStanding
from backends.types import TransferPriority

PROBE_WIDTH_CHUNKS = 64
PRIORITIES: tuple[TransferPriority, ...] = get_args(TransferPriority)
"""The classes, the highest first."""
ONE_IN = 16
"""While higher classes are busy a lower one gets one byte in so many."""


class _State(Enum):
    UNSEEN = 1
    READY = 2
    RECEIVING = 3
    WRITING = 4


_UNDER_WAY = frozenset({_State.RECEIVING, _State.WRITING})


@dataclass(slots=True)
class _Chunk:
    id: ChunkId
    state: _State = _State.UNSEEN
    size_bytes: int = 0
    fetch: ChunkFetch | None = None
    wanters: dict[str, int] = field(default_factory=dict)
    """Transfer id -> the chunk's index there."""


@dataclass(slots=True)
class _Transfer:
    id: str
    chunks: list[ChunkId]
    done: bytearray
    present: int
    turn: Standing
    rank: int
    """Its class's place in ``PRIORITIES``."""
    missing: int
    """Chunks that are not done."""
    wan_bytes: int = 0
    large: bool | None = None
    cursor: int = 0
    """All chunks before it are done or under way."""
    probe_cursor: int = 0
    """All chunks before it are done or seen."""
    probe_width: int = PROBE_WIDTH_CHUNKS


class TransferSchedule:
    """See the module's docstring. Every report is checked; one that no longer matters is ignored."""

    def __init__(self, *, memory_bytes: int, small_bytes: int, large_share: float = 0.125) -> None:
        self._memory_bytes = memory_bytes
        self._small_bytes = small_bytes
        self._transfers: dict[str, _Transfer] = {}
        self._chunks: dict[ChunkId, _Chunk] = {}
        self._orders = 0
        self._turns = [Turns(large_share, small_bytes) for _ in PRIORITIES]
        self._tenants: Counter[str] = Counter()
        """How many transfers each has open."""
        self.receiving_bytes = 0
        self.held_bytes = 0
        """Bytes being received or written."""

    def open(
        self,
        transfer_id: str,
        chunks: Sequence[ChunkId],
        present: Collection[ChunkId] = (),
        priority: TransferPriority = "waiting",
        tenant: str = "",
        weight: float = 1.0,
    ) -> None:
        """Start a transfer of ``chunks``; the receiving store holds ``present``. Raises ValueError on reuse.

        ``weight``: bytes that its tenant gets while others, of weight 1, get one.
        """
        if transfer_id in self._transfers:
            raise ValueError(f"transfer {transfer_id} exists")
        unique = list(dict.fromkeys(chunks))
        done = bytearray(chunk in present for chunk in unique)
        held = sum(done)
        rank = PRIORITIES.index(priority)
        turn = Standing(self._orders, tenant, weight)
        transfer = _Transfer(transfer_id, unique, done, held, turn, rank, len(unique) - held)
        self._orders += 1
        self._transfers[transfer_id] = transfer
        self._tenants[tenant] += 1
        self._want(transfer, [index for index, is_done in enumerate(done) if not is_done])

    def prioritise(self, transfer_id: str, priority: TransferPriority) -> None:
        """Give a transfer another class, in which it is level with the others; nothing when it is not open."""
        transfer, rank = self._transfers.get(transfer_id), PRIORITIES.index(priority)
        if transfer is not None and transfer.rank != rank:
            transfer.rank = rank
            transfer.turn.given_bytes = 0

    def demand(self, transfer_id: str, chunks: Iterable[ChunkId]) -> None:
        """Want ``chunks`` again: they were done or present, and the receiving store has lost them."""
        transfer = self._transfers[transfer_id]
        lost = frozenset(chunks)
        indexes = [index for index, chunk in enumerate(transfer.chunks) if chunk in lost and transfer.done[index]]
        for index in indexes:
            transfer.done[index] = False
        transfer.missing += len(indexes)
        self._want(transfer, indexes)

    def close(self, transfer_id: str) -> list[ChunkFetch]:
        """Forget a transfer; the result is the fetches under reception that no other transfer wants."""
        transfer = self._transfers.pop(transfer_id, None)
        if transfer is None:
            return []
        self._leave(transfer.turn.tenant)
        orphans = []
        for index, chunk_id in enumerate(transfer.chunks):
            chunk = self._chunks.get(chunk_id)
            if transfer.done[index] or chunk is None:
                continue
            del chunk.wanters[transfer_id]
            if chunk.wanters:
                continue
            if chunk.state is _State.RECEIVING and chunk.fetch is not None:
                orphans.append(chunk.fetch)
            self._release(chunk)
            del self._chunks[chunk_id]
        return orphans

    def standing(self, transfer_id: str) -> TransferStanding:
        """Progress of an open transfer."""
        transfer = self._transfers[transfer_id]
        return TransferStanding(
            len(transfer.chunks),
            len(transfer.chunks) - transfer.missing,
            transfer.present,
            transfer.wan_bytes,
            chunks_seen=self._next_unseen(transfer, transfer.probe_cursor),
        )

    @property
    def open_tenants(self) -> int:
        """How many tenants have open transfers."""
        return len(self._tenants)

    def wanters(self, chunk_id: ChunkId) -> list[str]:
        """Transfers that wait for the chunk."""
        chunk = self._chunks.get(chunk_id)
        return list(chunk.wanters) if chunk is not None else []

    def queued_by_class(self) -> dict[TransferPriority, int]:
        """Bytes that the open transfers still wait for; chunks of unknown size count as the latest known size."""
        latest = next((chunk.size_bytes for chunk in reversed(self._chunks.values()) if chunk.size_bytes), 0)
        queued = dict.fromkeys(PRIORITIES, 0)
        ranks = {transfer.id: transfer.rank for transfer in self._transfers.values()}
        for chunk in self._chunks.values():
            rank = min([ranks[transfer_id] for transfer_id in chunk.wanters])
            queued[PRIORITIES[rank]] += chunk.size_bytes or latest
        return queued

    def probes(self) -> list[ChunkId]:
        """Chunks to ask the sending store for, each once."""
        asked: dict[ChunkId, None] = {}
        for transfer in self._transfers.values():
            count = 0
            index = transfer.probe_cursor = self._next_unseen(transfer, transfer.probe_cursor)
            while index < len(transfer.chunks) and count < transfer.probe_width:
                asked[transfer.chunks[index]] = None
                count += 1
                index = self._next_unseen(transfer, index + 1)
        return list(asked)

    def seen(self, chunk_id: ChunkId, size_bytes: int) -> None:
        """The sending store holds the chunk."""
        chunk = self._chunks.get(chunk_id)
        if chunk is None or chunk.state is not _State.UNSEEN:
            return
        chunk.state = _State.READY
        chunk.size_bytes = size_bytes
        for transfer_id in chunk.wanters:
            self._transfers[transfer_id].probe_width = PROBE_WIDTH_CHUNKS

    def unseen(self, chunk_id: ChunkId) -> None:
        """The sending store does not hold the chunk yet: those who wait for it ask for nothing beyond it."""
        chunk = self._chunks.get(chunk_id)
        if chunk is None or chunk.state is not _State.UNSEEN:
            return
        for transfer_id, index in chunk.wanters.items():
            transfer = self._transfers[transfer_id]
            if index == self._next_unseen(transfer, transfer.probe_cursor):
                transfer.probe_width = 1

    def next_fetch(self, window_bytes: int) -> ChunkFetch | None:
        """Choose what crosses next, and count it as under way; None when nothing may start."""
        heads = self._heads()
        if not heads:
            return None
        chosen = {rank: self._turns[rank].choose(heads[rank]) for rank in sorted(heads)}
        rank = self._next_rank(chosen)
        head = chosen[rank]
        if not self._fits(head.size_bytes, window_bytes):
            return None
        self._settle(rank, head.size_bytes, heads.keys())
        self._turns[rank].give(head, heads[rank])
        transfer = self._transfers[head.transfer_id]
        chunk = self._chunks[transfer.chunks[transfer.cursor]]
        chunk.state = _State.RECEIVING
        chunk.fetch = ChunkFetch(chunk.id, chunk.size_bytes, transfer.id)
        self.receiving_bytes += chunk.size_bytes
        self.held_bytes += chunk.size_bytes
        return chunk.fetch

    def received(self, fetch: ChunkFetch) -> None:
        """All bytes of ``fetch`` crossed; they are being written."""
        chunk = self._current(fetch, _State.RECEIVING)
        if chunk is None:
            return
        chunk.state = _State.WRITING
        self.receiving_bytes -= chunk.size_bytes
        payer = fetch.transfer_id if fetch.transfer_id in chunk.wanters else next(iter(chunk.wanters))
        self._transfers[payer].wan_bytes += chunk.size_bytes

    def stored(self, fetch: ChunkFetch) -> list[str]:
        """The receiving store holds the chunk; the result is the transfers that made progress."""
        chunk = self._current(fetch, _State.WRITING)
        if chunk is None:
            return []
        for transfer_id, index in chunk.wanters.items():
            transfer = self._transfers[transfer_id]
            transfer.done[index] = True
            transfer.missing -= 1
        self._release(chunk)
        del self._chunks[chunk.id]
        return list(chunk.wanters)

    def lost(self, fetch: ChunkFetch) -> None:
        """The connection broke under ``fetch``: its chunk is ready again."""
        self._fall_back(fetch, _State.READY)

    def vanished(self, fetch: ChunkFetch) -> None:
        """The sending store no longer holds the chunk of ``fetch``: it is unseen again."""
        self._fall_back(fetch, _State.UNSEEN)

    def _want(self, transfer: _Transfer, indexes: list[int]) -> None:
        for index in indexes:
            chunk_id = transfer.chunks[index]
            chunk = self._chunks.get(chunk_id)
            if chunk is None:
                chunk = self._chunks[chunk_id] = _Chunk(chunk_id)
            chunk.wanters[transfer.id] = index
        if indexes:
            transfer.cursor = min(transfer.cursor, indexes[0])
            transfer.probe_cursor = min(transfer.probe_cursor, indexes[0])

    def _next_unseen(self, transfer: _Transfer, index: int) -> int:
        """First chunk of ``transfer`` at or after ``index`` that is unseen; the number of its chunks when none is."""
        while index < len(transfer.chunks):
            if not transfer.done[index] and self._chunks[transfer.chunks[index]].state is _State.UNSEEN:
                break
            index += 1
        return index

    def _head(self, transfer: _Transfer) -> _Chunk | None:
        """The chunk that ``transfer`` would start next, if it is ready."""
        while transfer.cursor < len(transfer.chunks):
            if not transfer.done[transfer.cursor]:
                chunk = self._chunks[transfer.chunks[transfer.cursor]]
                if chunk.state not in _UNDER_WAY:
                    return chunk if chunk.state is _State.READY else None
            transfer.cursor += 1
        return None

    def _heads(self) -> dict[int, list[Head]]:
        """What might start next in each class that has something to start."""
        heads: dict[int, list[Head]] = {}
        for transfer in self._transfers.values():
            chunk = self._head(transfer)
            if chunk is not None:
                head = Head(transfer.turn, transfer.id, chunk.size_bytes, self._is_large(transfer, chunk))
                heads.setdefault(transfer.rank, []).append(head)
        return heads

    def _next_rank(self, chosen: dict[int, Head]) -> int:
        """The class whose turn it is, of those with a chunk to start, the highest first."""
        first, *lower = chosen
        due = (rank for rank in lower if self._turns[rank].passed_bytes >= (ONE_IN - 1) * chosen[rank].size_bytes)
        return next(due, first)

    def _settle(self, rank: int, size_bytes: int, ready: Collection[int]) -> None:
        """Note that so many bytes go to a class, of those that have a chunk to start."""
        best = min(ready)
        for other, turns in enumerate(self._turns):
            if other == best or other not in ready:
                turns.passed_bytes = 0
            elif other == rank:
                turns.passed_bytes -= (ONE_IN - 1) * size_bytes
            elif other > rank:
                turns.passed_bytes += size_bytes

    def _leave(self, tenant: str) -> None:
        """A transfer of its has ended."""
        self._tenants[tenant] -= 1
        if self._tenants[tenant]:
            return
        del self._tenants[tenant]
        for turns in self._turns:
            if self._tenants:
                turns.forget(self._tenants)
            else:
                turns.reset()

    def _is_large(self, transfer: _Transfer, head: _Chunk) -> bool:
        """Whether ``transfer`` is large: decided once, when the size of its chunks is first known."""
        if transfer.large is None:
            transfer.large = transfer.missing * head.size_bytes > self._small_bytes
        return transfer.large

    def _fits(self, size_bytes: int, window_bytes: int) -> bool:
        in_window = not self.receiving_bytes or self.receiving_bytes + size_bytes <= window_bytes
        in_memory = not self.held_bytes or self.held_bytes + size_bytes <= self._memory_bytes
        return in_window and in_memory

    def _current(self, fetch: ChunkFetch, state: _State) -> _Chunk | None:
        chunk = self._chunks.get(fetch.chunk)
        return chunk if chunk is not None and chunk.fetch is fetch and chunk.state is state else None

    def _fall_back(self, fetch: ChunkFetch, state: _State) -> None:
        chunk = self._current(fetch, _State.RECEIVING) or self._current(fetch, _State.WRITING)
        if chunk is None:
            return
        self._release(chunk)
        chunk.state = state
        chunk.fetch = None
        for transfer_id, index in chunk.wanters.items():
            transfer = self._transfers[transfer_id]
            transfer.cursor = min(transfer.cursor, index)
            if state is _State.UNSEEN:
                transfer.probe_cursor = min(transfer.probe_cursor, index)

    def _release(self, chunk: _Chunk) -> None:
        """Give back the room that a chunk under way takes."""
        if chunk.state is _State.RECEIVING:
            self.receiving_bytes -= chunk.size_bytes
        if chunk.state in _UNDER_WAY:
            self.held_bytes -= chunk.size_bytes
