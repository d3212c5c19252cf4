"""How long the event loop was held by the process's own work: nothing else runs meanwhile, for no client."""

import asyncio
import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Gauge, Histogram

TICK_S = 0.05
SMOOTHED_S = 1.0
STALLS_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)


class LoopWatch:
    """Looks every ``TICK_S`` how late it is; the CPU that the process had meanwhile tells work from a busy machine.

    ``on_tick`` is told how late it was, and which share of a processor the process had.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        cpu_s: Callable[[], float] = time.process_time,
        clock: Callable[[], float] = time.monotonic,
        on_tick: Callable[[float, float], None] = lambda late_s, busy_share: None,
    ) -> None:
        self._stalls = Histogram(
            "pdd_loop_stall_seconds",
            "Times that the event loop was held by this process's own work",
            buckets=STALLS_S,
            registry=registry,
        )
        self._worst = Gauge("pdd_loop_worst_stall_seconds", "The longest of these since the start", registry=registry)
        self._lag = Gauge(
            "pdd_loop_lag_seconds", "How late the event loop was, smoothed over a second", registry=registry
        )
        self._tasks = Gauge("pdd_loop_tasks", "Tasks of the event loop", registry=registry)
        self._cpu_s = cpu_s
        self._clock = clock
        self._on_tick = on_tick
        self._lag_s = 0.0
        self._worst_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Watch from here on."""
        self._arm()

    def close(self) -> None:
        """Watch no more."""
        if self._timer is not None:
            self._timer.cancel()

    def show_metrics(self) -> None:
        """Bring the gauges up to date."""
        self._lag.set(self._lag_s)
        self._tasks.set(len(asyncio.all_tasks()))

    def note(self, late_s: float, used_s: float) -> None:
        """A tick came so late, and the process had so much CPU since the one before."""
        elapsed_s = TICK_S + late_s
        self._lag_s += (late_s - self._lag_s) * min(1.0, elapsed_s / SMOOTHED_S)
        self._on_tick(late_s, used_s / elapsed_s)
        stall_s = min(late_s, used_s)
        if stall_s >= STALLS_S[0]:
            self._stalls.observe(stall_s)
        if stall_s > self._worst_s:
            self._worst_s = stall_s
            self._worst.set(stall_s)

    def _arm(self) -> None:
        self._due_s, self._used_s = self._clock() + TICK_S, self._cpu_s()
        self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        self.note(self._clock() - self._due_s, self._cpu_s() - self._used_s)
        self._arm()
