"""Carries out what the scheduler decides: fetches chunks over the link, writes them, and keeps transfers informed."""

import asyncio
import logging
from collections.abc import Iterable, Sequence

from backends.kv.bridge.lines import Sender
from backends.kv.bridge.pace import LinkPace, OrderMark
from backends.kv.bridge.resp import CommandRefused, ConnectionLost, StoreAddress
from backends.kv.bridge.schedule import TransferSchedule
from backends.kv.bridge.stores import ChunkRefused, DestinationStore, Shard, SourceStore, make_shards
from backends.kv.bridge.transfer import BridgeTransfer
from backends.kv.bridge.types import BridgeCounts, BridgeLimits, ChunkFetch, ChunkId, TransferStanding
from backends.types import StoreSide, TransferPriority

log = logging.getLogger(__name__)

_PROBE_INTERVAL_S = 0.02
_PROBE_INTERVAL_PER_CHUNK_S = 0.0002
_PING_INTERVAL_S = 1.0
_CHECK_ROUNDS = 3


class TransferExists(Exception):
    """The transfer id is in use."""


class TooManyTransfers(Exception):
    """The bridge has as many open transfers as it may."""


class Mover:
    """Moves chunks from ``source`` to ``destination`` while ``run`` runs."""

    def __init__(self, source: StoreAddress, destination: StoreAddress, limits: BridgeLimits) -> None:
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self.pace = LinkPace(max_window_bytes=limits.memory_bytes, rate_cap_bytes_per_s=limits.rate_cap_bytes_per_s)
        self.source = SourceStore(
            source,
            connections=limits.connections,
            silence_s=limits.silence_s,
            on_change=self._pump,
            on_bytes=self.pace.arrived,
        )
        self.destination = DestinationStore(destination, silence_s=limits.silence_s)
        self.schedule = TransferSchedule(
            memory_bytes=limits.memory_bytes, small_bytes=limits.small_bytes, large_share=limits.large_share
        )
        self.transfers: dict[str, BridgeTransfer] = {}
        self.tally = BridgeCounts()
        self._carriers: dict[ChunkFetch, Sender] = {}
        self._probe_now = asyncio.Event()
        self._tasks: asyncio.TaskGroup | None = None
        self._chunk_bytes = 0
        self._pump_timer: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        """Work until cancelled; open transfers then fail."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            for store in (self.source, self.destination):
                tasks.create_task(store.servers.keep())
            tasks.create_task(self._probe_forever())
            try:
                await self._ping_forever()
            finally:
                self._tasks = None
                self.stop("the bridge is stopping")

    def stop(self, reason: str) -> None:
        """Fail every open transfer."""
        for transfer_id in list(self.transfers):
            self.fail(transfer_id, reason)

    def open(
        self,
        transfer_id: str,
        chunks: Sequence[ChunkId],
        deadline_s: float,
        priority: TransferPriority = "waiting",
        tenant: str = "",
        weight: float = 1.0,
    ) -> BridgeTransfer:
        """Start a transfer. Raises TransferExists or TooManyTransfers."""
        if transfer_id in self.transfers:
            raise TransferExists(transfer_id)
        if self._tasks is None or len(self.transfers) >= self._limits.transfers:
            raise TooManyTransfers
        unique = list(dict.fromkeys(chunks))
        standing = TransferStanding(len(unique), 0, 0, 0)
        transfer = BridgeTransfer(transfer_id, unique, standing, priority, tenant, weight)
        transfer.deadline = self._loop.call_later(deadline_s, self.fail, transfer_id, "the deadline has passed")
        self.transfers[transfer_id] = transfer
        transfer.task = self._tasks.create_task(self._begin(transfer))
        return transfer

    def fail(self, transfer_id: str, error: str) -> None:
        """End a transfer without its completion; traffic that only it wanted ends at once."""
        transfer = self.transfers.get(transfer_id)
        if transfer is None:
            return
        self.tally.failed += 1
        self._forget(transfer)
        transfer.advance("failed", error=error)

    def prioritise(self, transfer_id: str, priority: TransferPriority) -> bool:
        """Give a transfer another class; False when there is none."""
        transfer = self.transfers.get(transfer_id)
        if transfer is None:
            return False
        transfer.priority = priority
        self.schedule.prioritise(transfer_id, priority)
        return True

    def close(self, transfer_id: str) -> bool:
        """End a transfer that its owner no longer wants; False when there is none."""
        transfer = self.transfers.get(transfer_id)
        if transfer is None:
            return False
        self.tally.stopped += 1
        self._forget(transfer)
        transfer.advance("failed", error="stopped")
        return True

    def release(self, transfer: BridgeTransfer) -> None:
        """End ``transfer`` if it is open still; another one under its id is left alone."""
        if self.transfers.get(transfer.id) is transfer:
            self.close(transfer.id)

    @property
    def silence_s(self) -> float:
        """How long a store may be silent."""
        return self._limits.silence_s

    async def addresses_of(self, side: StoreSide) -> list[StoreAddress]:
        """Where the servers of one of the two stores are."""
        return await (self.source if side == "source" else self.destination).servers.addresses()

    @property
    def destination_up(self) -> bool:
        """Whether the receiving store answers."""
        return self.destination.servers.are_up

    @property
    def link_up(self) -> bool:
        """Whether the sending store answers over the link."""
        return self.source.servers.are_up

    def _forget(self, transfer: BridgeTransfer) -> None:
        del self.transfers[transfer.id]
        if transfer.task is not None and transfer.task is not asyncio.current_task():
            transfer.task.cancel()
        orphans = self.schedule.close(transfer.id)
        for fetch in orphans:
            carrier = self._carriers.get(fetch)
            if carrier is not None:
                carrier.abort("its chunk is no longer wanted")
        if orphans:
            self._pump()

    async def _begin(self, transfer: BridgeTransfer) -> None:
        try:
            present = await self.destination.present(transfer.chunks)
        except ChunkRefused as error:
            self.fail(transfer.id, str(error))
            return
        self.schedule.open(transfer.id, transfer.chunks, present, transfer.priority, transfer.tenant, transfer.weight)
        standing = self.schedule.standing(transfer.id)
        self.tally.present += standing.chunks_present
        transfer.advance("open", standing)
        if standing.complete:
            self._complete(transfer)
        else:
            self._probe_now.set()
            self._pump()

    def _complete(self, transfer: BridgeTransfer) -> None:
        self.tally.complete += 1
        standing = self.schedule.standing(transfer.id)
        self._forget(transfer)
        transfer.advance("complete", standing)

    async def _check(self, transfer: BridgeTransfer) -> None:
        """All chunks were written: complete the transfer if the receiving store still holds them all."""
        try:
            present = await self.destination.present(transfer.chunks)
        except ChunkRefused as error:
            self.fail(transfer.id, str(error))
            return
        lost = [chunk for chunk in transfer.chunks if chunk not in present]
        if not lost:
            self._complete(transfer)
            return
        transfer.checks += 1
        if transfer.checks >= _CHECK_ROUNDS:
            self.fail(transfer.id, "the receiving store evicts the chunks before all are there")
            return
        self.schedule.demand(transfer.id, lost)
        self._probe_now.set()

    def _pump(self) -> None:
        """Start every fetch that may start."""
        window_bytes = self.pace.window_bytes(self._chunk_bytes)
        # Connections that each have one chunk on order finish together and leave the link idle: give each two.
        spread = max(1, window_bytes // max(1, 2 * self._chunk_bytes))
        while self._tasks is not None:
            wait_s = self.pace.wait_s(self._loop.time())
            if wait_s > 0:
                if self._pump_timer is None:
                    self._pump_timer = self._loop.call_later(wait_s, self._pump_late)
                return
            carrier = self.source.servers.carrier(spread)
            if carrier is None:
                return
            fetch = self.schedule.next_fetch(window_bytes)
            if fetch is None:
                return
            self._carriers[fetch] = carrier
            mark = self.pace.ordered(self._loop.time(), fetch.size_bytes)
            self._tasks.create_task(self._move(fetch, carrier, mark))

    def _pump_late(self) -> None:
        self._pump_timer = None
        self._pump()

    async def _move(self, fetch: ChunkFetch, carrier: Sender, mark: OrderMark) -> None:
        try:
            found = await self.source.fetch(carrier, fetch.chunk, fetch.size_bytes)
        except ConnectionLost:
            self.tally.retried += 1
            self.schedule.lost(fetch)
            self._pump()
            return
        except ChunkRefused as error:
            self._refuse(fetch.chunk, str(error))
            return
        finally:
            del self._carriers[fetch]
            self.pace.settled()
        if found is None:
            self.schedule.vanished(fetch)
            self._loop.call_later(_PROBE_INTERVAL_S, self._probe_now.set)
            return
        self.pace.delivered(mark, self._loop.time())
        self.schedule.received(fetch)
        self._pump()
        await self._write(fetch, found)

    async def _write(self, fetch: ChunkFetch, shards: list[Shard]) -> None:
        try:
            if fetch.chunk.made is not None:
                shards = await asyncio.to_thread(make_shards, fetch.chunk.made, shards)
            await self.destination.put(fetch.chunk, shards)
        except ChunkRefused as error:
            self._refuse(fetch.chunk, str(error))
            return
        self.tally.moved += 1
        self.tally.moved_bytes += fetch.size_bytes
        for transfer_id in self.schedule.stored(fetch):
            transfer = self.transfers[transfer_id]
            standing = self.schedule.standing(transfer_id)
            transfer.advance("moving", standing)
            if standing.complete and self._tasks is not None:
                transfer.task = self._tasks.create_task(self._check(transfer))
        self._pump()

    def _refuse(self, chunk: ChunkId, error: str) -> None:
        """Fail all who want a chunk that cannot be had."""
        self.tally.refused += 1
        log.warning("chunk refused: %s", error)
        for transfer_id in self.schedule.wanters(chunk):
            self.fail(transfer_id, error)
        self._pump()

    async def _probe_forever(self) -> None:
        """Ask the sending store for chunks that it may not hold yet: soon after each other, but never hot."""
        while True:
            self._probe_now.clear()
            chunks = self.schedule.probes()
            if not chunks:
                await self._probe_now.wait()
                continue
            try:
                sizes = await self.source.sizes(chunks)
            except ConnectionLost:
                sizes = []
            self._learn(chunks, sizes)
            if sizes and None not in sizes:
                continue
            pause_s = _PROBE_INTERVAL_S + len(chunks) * _PROBE_INTERVAL_PER_CHUNK_S
            try:
                async with asyncio.timeout(pause_s):
                    await self._probe_now.wait()
            except TimeoutError:
                pass

    def _learn(self, chunks: Sequence[ChunkId], sizes: Sequence[int | ChunkRefused | None]) -> None:
        waiting: dict[str, None] = {}
        for chunk, size in zip(chunks, sizes, strict=False):
            if isinstance(size, ChunkRefused):
                self._refuse(chunk, str(size))
            elif size is None:
                self.schedule.unseen(chunk)
            elif size > self._limits.memory_bytes:
                self._refuse(chunk, f"a chunk of {size} bytes is larger than the bridge's memory")
            else:
                self._chunk_bytes = size
                self.schedule.seen(chunk, size)
                for transfer_id in self.schedule.wanters(chunk):
                    self.transfers[transfer_id].chunk_bytes = size // len(chunk.read_keys)
                    waiting[transfer_id] = None
        self._tell_seen(waiting)
        self._pump()

    def _tell_seen(self, transfer_ids: Iterable[str]) -> None:
        """Who waits for P's KV learns how far it is there, also when the chunks have to queue for the link."""
        for transfer_id in transfer_ids:
            transfer = self.transfers.get(transfer_id)
            if transfer is None:
                continue
            standing = self.schedule.standing(transfer_id)
            if standing.chunks_seen > transfer.standing.chunks_seen:
                transfer.advance("moving", standing)

    async def _ping_forever(self) -> None:
        """Measure the round trip, and notice dead connections while nothing else is asked of them."""
        while True:
            try:
                self.pace.echoed(await self.source.round_trip_s(), self._loop.time())
                await self.source.stay_awake()
            except (ConnectionLost, CommandRefused) as error:
                log.debug("no round trip: %s", error)
            await asyncio.sleep(_PING_INTERVAL_S)
