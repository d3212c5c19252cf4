"""A connection to a store that is opened again whenever it breaks."""

import asyncio
import logging
from collections.abc import Callable

from backends.kv.bridge.resp import CommandRefused, ConnectionLost, StoreAddress, StoreConnection

log = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0


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
                    pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s or _FIRST_PAUSE_S)
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
