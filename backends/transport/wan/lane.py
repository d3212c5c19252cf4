"""One direction of a link that all its connections share: a rate, and a delay that does not lower it.

Connections with bytes to send take turns of a fraction of a millisecond each, so a small message is not stuck behind
bulk. A byte crosses when its turn comes, counts then, and arrives one delay later.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

_TURN_S = 0.0005
_MIN_TURN_BYTES = 1460
_MIN_QUEUE_BYTES = 64 * 1024
_QUEUE_S = 0.02
_TIMER_S = 0.001
_MAX_LAG_S = 0.1
"""What a late timer may make up for."""
_CLOCK = time.monotonic


class LaneSink(Protocol):
    """Where a flow's bytes arrive."""

    def arrive(self, data: memoryview) -> None:
        """Take the next bytes."""
        ...

    def arrive_end(self) -> None:
        """Nothing follows."""
        ...

    def arrive_reset(self) -> None:
        """The other side broke the connection."""
        ...


@dataclass(slots=True, eq=False)
class LaneFlow:
    """One connection's bytes in one direction. ``on_room(True)`` tells its source to go on, False to wait."""

    sink: LaneSink
    on_room: Callable[[bool], None]
    queue: deque[memoryview] = field(default_factory=deque)
    queued_bytes: int = 0
    crossed_bytes: int = 0
    ending: bool = False
    full: bool = False
    blocked: bool = False
    waiting: bool = False
    """Whether it is in line for a turn."""


class Lane:
    """Carries flows at ``rate_bytes_per_s`` with ``delay_s``; both may be changed at any time."""

    def __init__(self, rate_bytes_per_s: float, delay_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self.rate_bytes_per_s = rate_bytes_per_s
        self.delay_s = delay_s
        self._line: deque[LaneFlow] = deque()
        self._crossing: deque[tuple[float, Callable[[], None]]] = deque()
        self._free_at_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._stalled = False
        self.crossed_bytes = 0

    def feed(self, flow: LaneFlow, data: bytes) -> None:
        """Queue bytes of ``flow``."""
        flow.queue.append(memoryview(data))
        flow.queued_bytes += len(data)
        if not flow.full and flow.queued_bytes >= self._queue_limit_bytes:
            flow.full = True
            flow.on_room(False)
        self._enlist(flow)

    def end(self, flow: LaneFlow) -> None:
        """The source has sent all it will."""
        flow.ending = True
        self._enlist(flow)

    def reset(self, flow: LaneFlow) -> None:
        """The source's connection broke: what is queued is lost, and the sink learns of it one delay later."""
        self.drop(flow)
        self._launch(_CLOCK(), flow.sink.arrive_reset)
        self._tick()

    def drop(self, flow: LaneFlow) -> None:
        """Forget what ``flow`` has queued."""
        flow.queue.clear()
        flow.queued_bytes = 0
        flow.ending = False

    def block(self, flow: LaneFlow, blocked: bool) -> None:
        """The sink takes no more for now, or does again."""
        flow.blocked = blocked
        if not blocked:
            self._enlist(flow)

    def stall(self, stalled: bool) -> None:
        """Stop everything on the lane where it is, or let it go on."""
        self._stalled = stalled
        self._free_at_s = max(self._free_at_s, _CLOCK())
        self._tick()

    def clear(self) -> None:
        """Lose everything that is queued or crossing."""
        for flow in self._line:
            self.drop(flow)
        self._crossing.clear()

    @property
    def _queue_limit_bytes(self) -> float:
        return max(_MIN_QUEUE_BYTES, self.rate_bytes_per_s * _QUEUE_S)

    def _enlist(self, flow: LaneFlow) -> None:
        if flow.waiting or flow.blocked:
            return
        if not self._line:
            self._free_at_s = max(self._free_at_s, _CLOCK())
        flow.waiting = True
        self._line.append(flow)
        self._tick()

    def _launch(self, crossed_at_s: float, arrive: Callable[[], None]) -> None:
        due_s = crossed_at_s + self.delay_s
        if self._crossing:
            due_s = max(due_s, self._crossing[-1][0])
        self._crossing.append((due_s, arrive))

    def _tick(self) -> None:
        """Do all that is due, and come back when the next is."""
        if self._stalled:
            return
        now_s = _CLOCK()
        self._free_at_s = max(self._free_at_s, now_s - _MAX_LAG_S)
        while self._line and self._free_at_s <= now_s:
            self._give_turn(self._line.popleft())
        while self._crossing and self._crossing[0][0] <= now_s:
            self._crossing.popleft()[1]()
        self._arm(now_s)

    def _arm(self, now_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        times = [self._free_at_s] if self._line else []
        if self._crossing:
            times.append(self._crossing[0][0])
        if times:
            self._timer = self._loop.call_later(max(_TIMER_S, min(times) - now_s), self._tick)

    def _give_turn(self, flow: LaneFlow) -> None:
        flow.waiting = False
        if flow.blocked:
            return
        turn_bytes = max(_MIN_TURN_BYTES, int(self.rate_bytes_per_s * _TURN_S))
        if flow.queue:
            head = flow.queue.popleft()
            piece = head[:turn_bytes]
            if len(piece) < len(head):
                flow.queue.appendleft(head[turn_bytes:])
            self._free_at_s += len(piece) / self.rate_bytes_per_s
            flow.queued_bytes -= len(piece)
            flow.crossed_bytes += len(piece)
            self.crossed_bytes += len(piece)
            self._launch(self._free_at_s, lambda: flow.sink.arrive(piece))
            if flow.full and flow.queued_bytes < self._queue_limit_bytes / 2:
                flow.full = False
                flow.on_room(True)
        if flow.queue:
            flow.waiting = True
            self._line.append(flow)
        elif flow.ending:
            flow.ending = False
            self._launch(self._free_at_s, flow.sink.arrive_end)
