"""Connections to one server of a store that are opened again whenever they break."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from itertools import islice
from typing import Protocol

from backends.kv.bridge.resp import Buffer, CommandRefused, ConnectionLost, StoreAddress, StoreConnection, StoreReply

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 1.0


class Sender(Protocol):
    """What commands are sent by: a connection, or what finds the right one among those of a cluster."""

    def send(self, *parts: Buffer, size_bytes: int | None = None) -> Awaitable[StoreReply]:
        """See ``StoreConnection.send``."""
        ...

    def abort(self, reason: str = ...) -> None:
        """Have what is due not come any more."""
        ...


class StoreLine:
    """Keeps one connection open while ``keep`` runs.

    ``on_change`` is called after the line came up or went down; ``on_bytes`` with each count of received bytes.
    """

    def __init__(
        self,
        address: StoreAddress,
        *,
        silence_s: float,
        on_change: Callable[[], None] | None = None,
        on_bytes: Callable[[int], None] | None = None,
    ) -> None:
        self._address = address
        self._silence_s = silence_s
        self._on_change = on_change
        self._on_bytes = on_bytes
        self._up = asyncio.Event()
        self.connection: StoreConnection | None = None
        self.opened_count = 0

    async def keep(self) -> None:
        """Hold the line up until cancelled."""
        pause_s = 0.0
        try:
            while True:
                await asyncio.sleep(pause_s)
                try:
                    connection = await StoreConnection.open(
                        self._address, silence_s=self._silence_s, on_bytes=self._on_bytes
                    )
                except (ConnectionLost, CommandRefused) as error:
                    if not pause_s:
                        log.warning("store %s is away: %s", self._address, error)
                    pause_s = min(LONGEST_PAUSE_S, 2 * pause_s or FIRST_PAUSE_S)
                    continue
                pause_s = 0.0
                self.opened_count += 1
                self._set(connection)
                await asyncio.shield(connection.closed)
                self._set(None)
        finally:
            if self.connection is not None:
                self.connection.abort("the bridge is stopping")
                self._set(None)

    async def ready(self) -> StoreConnection:
        """Wait until the line is up."""
        while self.connection is None:
            await self._up.wait()
        return self.connection

    def _set(self, connection: StoreConnection | None) -> None:
        self.connection = connection
        if connection is None:
            self._up.clear()
        else:
            self._up.set()
        if self._on_change is not None:
            self._on_change()


class StoreServer:
    """One server: a control line, and ``connections`` more for what is large."""

    def __init__(self, address: StoreAddress, connections: int, make_line: Callable[[StoreAddress], StoreLine]) -> None:
        self.address = address
        self.control = make_line(address)
        self._lines = [make_line(address) for _ in range(connections)]

    @property
    def lines(self) -> list[StoreLine]:
        """All lines, the control line first."""
        return [self.control, *self._lines]

    async def keep(self) -> None:
        """Hold all lines up until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for line in self.lines:
                tasks.create_task(line.keep())

    def idlest(self, spread: int) -> StoreConnection | None:
        """Of the first ``spread`` connections that are up, the one with the fewest bytes on order."""
        usable = (line.connection for line in self._lines if line.connection is not None and line.connection.usable)
        return min(islice(usable, spread), key=lambda connection: connection.due_bytes, default=None)

    async def ready(self, spread: int | None, within_s: float) -> StoreConnection:
        """Wait for a line, the control line if ``spread`` is None. Raises ConnectionLost when it takes too long."""
        connection = self.control.connection if spread is None else self.idlest(spread)
        if connection is not None and connection.usable:
            return connection
        line = self.lines[0 if spread is None else 1]
        try:
            async with asyncio.timeout(within_s):
                return await line.ready()
        except TimeoutError:
            raise ConnectionLost(f"store {self.address} is away") from None
