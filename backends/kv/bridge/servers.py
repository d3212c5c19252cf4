"""The servers that a store consists of.

Mostly that is one. A Redis or Valkey Cluster has several, each with the keys of some slots; which ones is asked of the
cluster, and asked again when a key turns out to have moved.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from redis.crc import key_slot

from backends.kv.bridge.cluster import ask_nodes, read_hint, read_nodes
from backends.kv.bridge.lines import FIRST_PAUSE_S, LONGEST_PAUSE_S, Sender, StoreLine, StoreServer
from backends.kv.bridge.resp import Buffer, CommandRefused, ConnectionLost, StoreAddress, StoreConnection, StoreReply

log = logging.getLogger(__name__)

TRANSIENT_ERRORS = ("LOADING", "BUSY", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN")
RETRY_PAUSE_S = 0.05
_LOOK_INTERVAL_S = 5.0
"""Between two looks at a cluster that nothing has moved in."""
_MOST_MOVES = 5


class StoreServers:
    """All servers of the store at ``address``, while ``keep`` runs; other arguments: see ``StoreLine``."""

    def __init__(
        self,
        address: StoreAddress,
        *,
        connections: int,
        silence_s: float,
        on_change: Callable[[], None] | None = None,
        on_bytes: Callable[[int], None] | None = None,
    ) -> None:
        self._address = address
        self._connections = connections
        self.silence_s = silence_s
        self._on_change = on_change
        self._on_bytes = on_bytes
        self._servers: dict[StoreAddress, StoreServer] = {}
        self._slots: dict[int, StoreAddress] = {}
        self._is_known = asyncio.Event()
        self._look_now = asyncio.Event()
        self._told = ""
        """Why the last look was in vain."""
        self._keepers: dict[StoreAddress, asyncio.Task[None]] = {}
        self._tasks: asyncio.TaskGroup | None = None
        if not address.seeds:
            self._servers[address] = self._make(address)

    @property
    def all(self) -> list[StoreServer]:
        """Those that are known now."""
        return list(self._servers.values())

    @property
    def one(self) -> StoreServer:
        """The only one of a store that is no cluster."""
        return self._servers[self._address]

    @property
    def lines(self) -> list[StoreLine]:
        """All lines to all of them."""
        return [line for server in self.all for line in server.lines]

    @property
    def are_up(self) -> bool:
        """Whether there are any, and all answer."""
        return bool(self._servers) and all(server.control.connection is not None for server in self.all)

    async def keep(self) -> None:
        """Hold the lines to all servers up until cancelled; of a cluster also find out which these are."""
        async with asyncio.TaskGroup() as self._tasks:
            for server in self.all:
                self._tasks.create_task(server.keep())
            pause_s = FIRST_PAUSE_S
            while self._address.seeds:
                await self._look()
                await asyncio.sleep(pause_s)
                pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)
                if self._is_known.is_set():
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_LOOK_INTERVAL_S):
                            await self._look_now.wait()
                self._look_now.clear()

    async def controller(self) -> Sender:
        """What small commands are sent by; waits for a store that is away."""
        if not self._address.seeds:
            return await self.one.control.ready()
        await self._is_known.wait()
        return ClusterSender(self, None)

    def carrier(self, spread: int) -> Sender | None:
        """What a chunk is fetched by, over the first ``spread`` lines to its server; None: nothing can be, now."""
        if not self._address.seeds:
            return self.one.idlest(spread)
        is_usable = any(server.idlest(spread) is not None for server in self.all)
        return ClusterSender(self, spread) if is_usable else None

    async def holder(self, slot: int) -> StoreServer:
        """The server of a cluster that has a slot's keys, as far as is known.

        One that nobody has is waited for, for a bounded time. Raises ConnectionLost.
        """
        clock = asyncio.get_running_loop().time
        end_s = clock() + self.silence_s
        while (address := self._slots.get(slot)) is None:
            if clock() >= end_s:
                raise ConnectionLost(f"no server of the cluster {self._address} has slot {slot}")
            self._look_now.set()
            await asyncio.sleep(RETRY_PAUSE_S)
        return self.at(address.host, address.port)

    def at(self, host: str, port: int) -> StoreServer:
        """One server of the cluster, by its own word of where it is."""
        address = replace(self._address, host=host, port=port, seeds=())
        server = self._servers.get(address)
        if server is None:
            server = self._servers[address] = self._make(address)
            if self._tasks is not None:
                self._keepers[address] = self._tasks.create_task(server.keep())
        return server

    def note_moved(self, slot: int, server: StoreServer) -> None:
        """A slot's keys are at another server now; others may be, too."""
        self._slots[slot] = server.address
        self._look_now.set()

    async def addresses(self) -> list[StoreAddress]:
        """Where all servers are; waits until that is known."""
        if self._address.seeds:
            await self._is_known.wait()
        return [server.address for server in self.all]

    def _make(self, address: StoreAddress) -> StoreServer:
        return StoreServer(address, self._connections, self._make_line)

    def _make_line(self, address: StoreAddress) -> StoreLine:
        return StoreLine(address, silence_s=self.silence_s, on_change=self._on_change, on_bytes=self._on_bytes)

    async def _look(self) -> None:
        """Ask the cluster which servers have which slots."""
        known = [server.address for server in self.all]
        seeds = [replace(self._address, host=host, port=port, seeds=()) for host, port in self._address.seeds]
        why = "no seed"
        for address in (*known, *seeds):
            try:
                text = await ask_nodes(address, self.silence_s)
                slots = {slot: place for slots, place in read_nodes(text, address.host) for slot in slots}
            except (ConnectionLost, CommandRefused, ValueError) as error:
                why = str(error)
                continue
            if slots:
                self._apply(slots)
                return
            why = f"{address} knows of no slots"
        if why != self._told:
            log.warning("the cluster %s does not tell its servers: %s", self._address, why)
        self._told = why

    def _apply(self, slots: Mapping[int, tuple[str, int]]) -> None:
        self._told = ""
        self._slots = {slot: self.at(*place).address for slot, place in slots.items()}
        used = set(self._slots.values())
        for address in set(self._servers) - used:
            del self._servers[address]
            self._keepers.pop(address).cancel()
        if not self._is_known.is_set():
            log.info("the cluster %s has %d servers", self._address, len(self._servers))
        self._is_known.set()


class ClusterSender:
    """Sends each command to the server of a cluster that has its key; ``spread``: see ``StoreServer.ready``."""

    def __init__(self, servers: StoreServers, spread: int | None) -> None:
        self._servers = servers
        self._spread = spread
        self._carriers: set[StoreConnection] = set()

    def send(self, *parts: Buffer, size_bytes: int | None = None) -> asyncio.Task[StoreReply]:
        """See ``StoreConnection.send``; the second part is the key. Keys that have moved are followed."""
        task = asyncio.create_task(self._send(parts, size_bytes))
        task.add_done_callback(_mark_seen)
        return task

    def abort(self, reason: str = "aborted") -> None:
        """Reset the connections that carry what is due."""
        for connection in tuple(self._carriers):
            connection.abort(reason)

    async def _send(self, parts: tuple[Buffer, ...], size_bytes: int | None) -> StoreReply:
        slot, clock = key_slot(bytes(parts[1])), asyncio.get_running_loop().time
        end_s = clock() + self._servers.silence_s
        server, is_asking = await self._servers.holder(slot), False
        moves = 0
        while True:
            connection = await server.ready(self._spread, self._servers.silence_s)
            try:
                return await self._send_over(connection, parts, size_bytes, is_asking)
            except CommandRefused as error:
                hint = read_hint(str(error))
                if hint is not None and moves < _MOST_MOVES:
                    moves += 1
                    server, is_asking = self._servers.at(hint.host or server.address.host, hint.port), hint.is_asking
                    if not is_asking:
                        self._servers.note_moved(slot, server)
                elif str(error).startswith(TRANSIENT_ERRORS) and clock() < end_s:
                    await asyncio.sleep(RETRY_PAUSE_S)
                else:
                    raise

    async def _send_over(
        self, connection: StoreConnection, parts: tuple[Buffer, ...], size_bytes: int | None, is_asking: bool
    ) -> StoreReply:
        self._carriers.add(connection)
        try:
            if is_asking:
                connection.send(b"ASKING").add_done_callback(_mark_seen)
            return await connection.send(*parts, size_bytes=size_bytes)
        finally:
            self._carriers.discard(connection)


def _mark_seen(outcome: asyncio.Future[StoreReply]) -> None:
    """Have nobody complain of a failure that nobody waited for."""
    if not outcome.cancelled():
        outcome.exception()
