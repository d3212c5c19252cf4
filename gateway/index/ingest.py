"""Follows the events of one engine instance and hands on what they change.

While anything of an engine's history is missing the instance is *unknown*. It is known again after its whole history
was seen (from sequence 0), after its cache was cleared, or after ``rebuild_s`` of unbroken events. If the engine keeps
a replay buffer, a message that is out of order counts only if the buffer confirms it: a forged one changes nothing.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Protocol

from xxhash import xxh3_64_intdigest
from zmq.asyncio import Context

from backends.kv.events import BadFrame, BlocksCleared, EventBatch, decode_batch
from backends.kv.subscriber import EventSource, EventSubscriber, Frame, ReplayUnavailable
from gateway.index.engine_blocks import Change, EventMark
from gateway.index.mirror import CacheDelta
from gateway.index.residency import Residency
from gateway.index.types import CacheSpec

_REMEMBERED = 16_384


class MessageOrder(Enum):
    """What to do with a message."""

    NEXT = "next"
    DUPLICATE = "duplicate"
    GAP = "gap"
    RESTART = "restart"


class Watermark:
    """Where one rank's messages stand; ``mark`` tells the last one that an earlier process took."""

    def __init__(self, mark: EventMark | None = None) -> None:
        self.last = mark.sequence if mark else -1
        """The last sequence number that was taken, -1 for none."""
        self._seen = {mark.sequence: mark.digest} if mark else {}

    def mark(self) -> EventMark | None:
        """Return the last message that was taken."""
        return EventMark(self.last, self._seen[self.last]) if self.last >= 0 else None

    def judge(self, sequence: int, payload: bytes) -> MessageOrder:
        """Place a message; this changes nothing."""
        if sequence == self.last + 1:
            return MessageOrder.NEXT
        if sequence > self.last:
            return MessageOrder.GAP
        if self._seen.get(sequence) == xxh3_64_intdigest(payload):
            return MessageOrder.DUPLICATE
        return MessageOrder.RESTART

    def take(self, sequence: int, payload: bytes) -> None:
        """Record that a message was applied: the next one expected follows it."""
        self.last = sequence
        self._seen[sequence] = xxh3_64_intdigest(payload)
        if len(self._seen) > _REMEMBERED:
            del self._seen[next(iter(self._seen))]


_BURST_S = 0.005
_STEP_S = 0.002
"""So long a batch is applied before others may run."""
_INLINE_BYTES = 64 << 10
"""Larger messages are decoded beside the event loop."""


@dataclass(frozen=True, slots=True)
class IngestTimes:
    """Limits of the ingest, in seconds.

    ``idle_s``: after this long without a message, ask the replay buffer whether one was missed or the engine restarted.
    """

    idle_s: float = 5.0
    replay_timeout_s: float = 2.0
    rebuild_s: float = 300.0


class CacheSink(Protocol):
    """Where an instance's changes go."""

    async def publish(self, rank: int, change: Change) -> None:
        """Apply a change of one rank's blocks."""
        ...

    async def set_known(self, known: bool) -> None:
        """Say whether the published blocks are all that the instance holds."""
        ...


class _Rank:
    """One rank's blocks, and where its messages stand. ``complete``: nothing of its history is missing.

    ``doubt``: whether that still holds is only known with its next message.
    """

    def __init__(self, residency: Residency, now: float, mark: EventMark | None = None, complete: bool = False) -> None:
        self.residency = residency
        self.watermark = Watermark(mark)
        self.complete = complete
        self.doubt = False
        self.incomplete_since = now
        self.published = self.watermark.last
        self.whole = asyncio.Lock()
        """Held while a message is applied: before and after it, what is held is what the watermark says."""

    def mark(self) -> EventMark | None:
        """Return where another process could go on; None when it could not."""
        return self.watermark.mark() if self.residency.restorable else None


class Ingester:
    """Follows one boot of one instance: ``run()`` until cancelled."""

    def __init__(
        self,
        spec: CacheSpec,
        sink: CacheSink,
        context: Context,
        seed_of: Callable[[str | None, str | None], bytes],
        counters: Counter[str],
        now: Callable[[], float],
        times: IngestTimes,
        *,
        records: bool = False,
    ) -> None:
        self._spec = spec
        self._sink = sink
        self._context = context
        self._seed_of = seed_of
        self._counters = counters
        self._now = now
        self._times = times
        self._records = records
        self._ranks = [self._new_rank() for _ in range(spec.dp_size)]
        self._published_known = False
        self._publishing = asyncio.Lock()

    async def run(self) -> None:
        """Follow all sources. Ends only by cancellation, or by zmq.ZMQError when an endpoint cannot be used."""
        async with asyncio.TaskGroup() as group:
            for position, source in enumerate(self._spec.sources):
                group.create_task(self._follow(source, position))

    def resume(self, residencies: Sequence[Residency], marks: Sequence[EventMark], known: bool) -> None:
        """Go on where an earlier process stopped; until that is confirmed the instance is in doubt."""
        now = self._now()
        self._ranks = [_Rank(residency, now, mark, known) for residency, mark in zip(residencies, marks, strict=True)]
        for rank in self._ranks:
            rank.doubt = True
        self._published_known = known

    def close(self) -> None:
        """Let go of what is kept of the instance."""
        for rank in self._ranks:
            rank.residency.clear()

    def new_residency(self) -> Residency:
        """Return an empty residency for one of the instance's ranks."""
        return Residency(self._seed_of, self._counters, records=self._records)

    async def republish(self) -> None:
        """Hand on everything again, for a sink that lost it."""
        async with self._publishing:
            await self._sink.set_known(False)
            for number, rank in enumerate(self._ranks):
                async with rank.whole:
                    # What changes from here on is drained later, and is replayed to who goes on from the mark.
                    mark = rank.mark()
                    rank.residency.drain()
                for part in rank.residency.snapshot():
                    await self._sink.publish(number, part)
                await self._sink.publish(number, Change(CacheDelta(), mark=mark))
            self._published_known = self._is_known()
            await self._sink.set_known(self._published_known)

    async def _follow(self, source: EventSource, position: int) -> None:
        own_ranks = [position] if len(self._spec.sources) == self._spec.dp_size else list(range(self._spec.dp_size))
        async with EventSubscriber(self._context, source) as subscriber:
            await self._verify(subscriber, own_ranks)
            while True:
                await self._publish()
                await asyncio.sleep(0)  # a busy engine must not keep the loop from everyone else
                if not await self._take_next(subscriber, own_ranks, self._times.idle_s):
                    await self._verify(subscriber, own_ranks)
                    continue
                deadline = self._now() + _BURST_S
                while self._now() < deadline and await self._take_next(subscriber, own_ranks, 0.0):
                    pass

    async def _take_next(self, subscriber: EventSubscriber, own_ranks: list[int], timeout_s: float) -> bool:
        """Receive and apply one message; False when none came in time."""
        try:
            frame = await subscriber.receive(timeout_s)
            if frame is None:
                return False
            self._counters["frames"] += 1
            batch = await self._decode(frame)
        except BadFrame:
            self._counters["bad_frames"] += 1
            for number in own_ranks:
                self._ranks[number].doubt = True
            return True
        await self._take(subscriber, frame, batch)
        return True

    async def _decode(self, frame: Frame) -> EventBatch:
        payload = frame.payload
        large = len(payload) > _INLINE_BYTES
        batch = await asyncio.to_thread(decode_batch, payload) if large else decode_batch(payload)
        rank = batch.rank - self._spec.first_rank
        if not 0 <= rank < len(self._ranks):
            raise BadFrame("rank is not one of the instance's")
        return batch if rank == batch.rank else replace(batch, rank=rank)

    async def _take(self, subscriber: EventSubscriber, frame: Frame, batch: EventBatch) -> None:
        verdict = self._judge(frame, batch)
        if verdict is MessageOrder.GAP or verdict is MessageOrder.RESTART:
            if verdict is MessageOrder.RESTART:
                self._restart(batch.rank)
            else:
                self._counters["gaps"] += 1
            answered = await self._replay(subscriber, self._ranks[batch.rank].watermark.last + 1) is not None
            verdict = self._judge(frame, batch)
            if verdict is MessageOrder.GAP or verdict is MessageOrder.RESTART:
                if answered:
                    self._counters["forged_frames"] += 1
                    return
                self._forget(batch.rank)
                verdict = MessageOrder.NEXT
        if verdict is MessageOrder.NEXT:
            await self._apply(frame, batch)
        else:
            self._counters["duplicates"] += 1

    def _judge(self, frame: Frame, batch: EventBatch) -> MessageOrder:
        return self._ranks[batch.rank].watermark.judge(frame.sequence, frame.payload)

    async def _apply(self, frame: Frame, batch: EventBatch) -> None:
        rank = self._ranks[batch.rank]
        async with rank.whole:
            rank.watermark.take(frame.sequence, frame.payload)
            due = self._now() + _STEP_S
            for _ in rank.residency.steps(batch):
                if self._now() >= due:
                    await asyncio.sleep(0)
                    due = self._now() + _STEP_S
        self._counters["skipped_events"] += batch.skipped
        rank.doubt = False
        if frame.sequence == 0 or BlocksCleared() in batch.events:
            rank.complete = True

    def _restart(self, number: int) -> None:
        self._counters["restarts"] += 1
        self._forget(number)

    def _forget(self, number: int) -> None:
        """Start a rank anew: what it holds is not known any more."""
        self._counters["losses"] += 1
        self._ranks[number].residency.clear()
        rank = self._ranks[number] = self._new_rank()
        rank.residency.clear()

    def _new_rank(self) -> _Rank:
        return _Rank(self.new_residency(), self._now())

    async def _replay(self, subscriber: EventSubscriber, start: int) -> set[int] | None:
        """Apply what the engine still keeps from ``start`` on.

        Returns the ranks whose messages fitted what was known, or None when the engine did not answer in full.
        """
        fitting = set()
        try:
            async for frame in subscriber.replay(start, self._times.replay_timeout_s):
                self._counters["replayed_frames"] += 1
                batch = await self._decode(frame)
                verdict = self._judge(frame, batch)
                if verdict is MessageOrder.DUPLICATE or verdict is MessageOrder.NEXT:
                    fitting.add(batch.rank)
                if verdict is MessageOrder.GAP:
                    self._forget(batch.rank)
                if verdict is MessageOrder.GAP or verdict is MessageOrder.NEXT:
                    await self._apply(frame, batch)
        except (ReplayUnavailable, BadFrame):
            return None
        return fitting

    async def _verify(self, subscriber: EventSubscriber, own_ranks: list[int]) -> None:
        """Ask the replay buffer whether messages were missed, or the engine restarted in silence."""
        for number in own_ranks:
            last = self._ranks[number].watermark.last
            fitting = await self._replay(subscriber, max(last, 0))
            if fitting is None:
                break
            if last >= 0 and number not in fitting:
                self._restart(number)
                await self._replay(subscriber, 0)
            rank = self._ranks[number]
            rank.complete |= rank.watermark.last < 0
            rank.doubt = False
        now = self._now()
        for rank in self._ranks:
            rank.complete |= now - rank.incomplete_since > self._times.rebuild_s

    def _is_known(self) -> bool:
        return all(rank.complete and not rank.doubt for rank in self._ranks)

    async def _publish(self) -> None:
        """Hand on what changed; an instance turns unknown before its blocks change, and known after."""
        async with self._publishing:
            known = self._is_known()
            if not known and self._published_known:
                self._published_known = False
                await self._sink.set_known(False)
            for number, rank in enumerate(self._ranks):
                async with rank.whole:
                    if rank.watermark.last == rank.published and not rank.residency.is_cleared:
                        continue
                    rank.published = rank.watermark.last
                    mark, parts = rank.mark(), rank.residency.drain()
                part = next(parts)
                for following in parts:
                    # Who goes on from an earlier mark applies this again.
                    await self._sink.publish(number, part)
                    await asyncio.sleep(0)  # a sink may not wait for anything
                    part = following
                await self._sink.publish(number, replace(part, mark=mark))
            if known and not self._published_known:
                self._published_known = True
                await self._sink.set_known(True)
