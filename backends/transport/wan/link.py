"""A slow link between two regions, in user space: TCP connections relayed over two shared lanes."""

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import msgspec

from backends.transport.wan.lane import Lane
from backends.transport.wan.route import RouteStats, RunningRoute, WanRoute

_BYTES_PER_MBIT = 125_000


class WanStats(msgspec.Struct, frozen=True):
    """The link's state and counts."""

    rate_mbit: float
    delay_ms: float
    stalled: bool
    cut: bool
    connections: int
    to_target_bytes: int
    from_target_bytes: int
    routes: list[RouteStats]


class WanLink:
    """``async with WanLink([route, ...], rate_mbit=40, delay_ms=15) as wan:`` relays until the block ends.

    The rate holds for each direction, over all routes together; the delay is one way.
    """

    def __init__(self, routes: Sequence[WanRoute], *, rate_mbit: float, delay_ms: float) -> None:
        self.rate_mbit = rate_mbit
        self.delay_ms = delay_ms
        self.is_stalled = False
        self.is_cut = False
        self._heal_timer: asyncio.TimerHandle | None = None
        rate, delay_s = rate_mbit * _BYTES_PER_MBIT, delay_ms / 1000
        self.up = Lane(rate, delay_s)
        """The lane toward the targets."""
        self.down = Lane(rate, delay_s)
        """The lane from the targets."""
        self._routes = [RunningRoute(route, self.up, self.down) for route in routes]

    @property
    def ports(self) -> list[int]:
        """Where each route listens, in the order given."""
        return [route.port for route in self._routes]

    async def __aenter__(self) -> Self:
        for route in self._routes:
            await route.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cut()
        for route in self._routes:
            await route.stop()

    def set(self, *, rate_mbit: float | None = None, delay_ms: float | None = None) -> None:
        """Change rate or delay from now on. Raises ValueError for what no link has."""
        if (rate_mbit is not None and rate_mbit <= 0) or (delay_ms is not None and delay_ms < 0):
            raise ValueError("rate_mbit must be positive and delay_ms not negative")
        self.rate_mbit = self.rate_mbit if rate_mbit is None else rate_mbit
        self.delay_ms = self.delay_ms if delay_ms is None else delay_ms
        for lane in (self.up, self.down):
            lane.rate_bytes_per_s = self.rate_mbit * _BYTES_PER_MBIT
            lane.delay_s = self.delay_ms / 1000

    def stall(self, on: bool) -> None:
        """Stop all bytes while connections stay, or let them go on."""
        self.is_stalled = on
        for lane in (self.up, self.down):
            lane.stall(on)

    def cut(self, for_s: float | None = None) -> None:
        """Break all connections and refuse new ones, until ``heal`` or for ``for_s``."""
        self.is_cut = True
        self._cancel_heal()
        for lane in (self.up, self.down):
            lane.clear()
        for route in self._routes:
            route.refuse(True)
        if for_s is not None:
            self._heal_timer = asyncio.get_running_loop().call_later(for_s, self.heal)

    def heal(self) -> None:
        """Take connections again."""
        self.is_cut = False
        self._cancel_heal()
        for route in self._routes:
            route.refuse(False)

    def stats(self) -> WanStats:
        """State and counts as of now."""
        routes = [route.stats() for route in self._routes]
        return WanStats(
            rate_mbit=self.rate_mbit,
            delay_ms=self.delay_ms,
            stalled=self.is_stalled,
            cut=self.is_cut,
            connections=sum(route.connections for route in routes),
            to_target_bytes=self.up.crossed_bytes,
            from_target_bytes=self.down.crossed_bytes,
            routes=routes,
        )

    def _cancel_heal(self) -> None:
        if self._heal_timer is not None:
            self._heal_timer.cancel()
            self._heal_timer = None
