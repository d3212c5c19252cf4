"""Evens out the joint.

While MD catches up, RLD's tokens are given out a little more slowly than they come. What is then in reserve is given
out while MD's first token is on its way, so that the client sees a slightly slower stretch instead of a stop.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from gateway.errors import GatewayError
from gateway.relay.splice_events import Phase
from gateway.relay.types import Finish, Tokens

STRETCH = 1.3
"""Pace of the given tokens while the reserve is filled, as a multiple of the pace at which they come."""
EASE = 0.7
"""The same while it is emptied again."""
NEWEST_SHARE = 0.2
PAUSE = 3.0
"""A silence of so many token times says nothing of the pace."""


@dataclass(slots=True)
class Pacer:
    """Says when tokens are due. ``reserve_s``: longest time by which one is held back; 0: none ever is."""

    reserve_s: float
    _itl_s: float | None = None
    _arrived_s: float | None = None
    _due_s: float = 0.0

    def schedule(self, now_s: float, tokens: int, *, filling: bool) -> float:
        """When the ``tokens`` that came now are due; ``filling``: MD is catching up."""
        if self._arrived_s is not None:
            seen_s = (now_s - self._arrived_s) / tokens
            if self._itl_s is None:
                self._itl_s = seen_s
            elif seen_s < PAUSE * self._itl_s:
                self._itl_s += NEWEST_SHARE * (seen_s - self._itl_s)
        self._arrived_s = now_s
        due_s = now_s
        if self._itl_s is not None and (filling or self._due_s > now_s):
            pace_s = self._itl_s * tokens * (STRETCH if filling else EASE)
            due_s = min(max(now_s, self._due_s + pace_s), now_s + self.reserve_s)
        self._due_s = max(due_s, self._due_s)
        return self._due_s


Given = Tokens | Finish | GatewayError
"""What an answer gives: tokens, and its end, good or bad."""


class Outbox:
    """What the client gets next, in order, and when. ``give`` gets each thing when it is due."""

    def __init__(self, reserve_s: float, clock: Callable[[], float], give: Callable[[Given], None]) -> None:
        self._waiting: deque[tuple[float, Given]] = deque()
        self._pacer = Pacer(reserve_s)
        self._clock = clock
        self._give = give
        self._timer: asyncio.TimerHandle | None = None

    def hold_back(self, tokens: Tokens, phase: Phase) -> bool:
        """Say whether tokens are given later, when the pacer says, and not now."""
        if phase is Phase.MAIN and not self._waiting:
            return False
        now_s = self._clock()
        due_s = self._pacer.schedule(now_s, len(tokens.ids), filling=phase is Phase.CATCH_UP)
        if due_s <= now_s and not self._waiting:
            return False
        self._hold(due_s, tokens)
        return True

    def end(self, end: Finish | GatewayError) -> None:
        """Give the end right after all that waits."""
        if self._waiting:
            self._hold(self._waiting[-1][0], end)
        else:
            self._give(end)

    def clear(self) -> None:
        """Drop all that waits."""
        self._waiting.clear()
        self.close()

    def close(self) -> None:
        """Give nothing any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _hold(self, due_s: float, given: Given) -> None:
        self._waiting.append((due_s, given))
        self._arm()

    def _arm(self) -> None:
        if self._timer is not None or not self._waiting:
            return
        wait_s = max(0.0, self._waiting[0][0] - self._clock())
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._give_due)

    def _give_due(self) -> None:
        self._timer = None
        while self._waiting and self._waiting[0][0] <= self._clock():
            self._give(self._waiting.popleft()[1])
        self._arm()
