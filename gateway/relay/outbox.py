"""What the client gets next, and when it is due."""

import asyncio
from collections import deque
from collections.abc import Callable

from gateway.relay.pacing import Pacer
from gateway.relay.types import AnswerEvent, Finish, KeepAlive, Tokens


class Outbox:
    """Events of one answer in order. ``wake`` is called when the first becomes due after ``arm``."""

    def __init__(self, reserve_s: float, clock: Callable[[], float], wake: Callable[[], None]) -> None:
        self._waiting: deque[tuple[float, AnswerEvent]] = deque()
        self._pacer = Pacer(reserve_s)
        self._clock = clock
        self._wake = wake
        self._timer: asyncio.TimerHandle | None = None

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, tokens: Tokens, *, filling: bool) -> None:
        """Give tokens out when the pacer says; ``filling``: MD is catching up."""
        due_s = self._pacer.schedule(self._clock(), len(tokens.ids), filling=filling)
        self._waiting.append((due_s, tokens))

    def put(self, event: KeepAlive | Finish) -> None:
        """Give an event out right after all that waits."""
        self._waiting.append((self._waiting[-1][0] if self._waiting else 0.0, event))

    def clear(self) -> None:
        """Drop all that waits."""
        self._waiting.clear()

    def take(self) -> AnswerEvent | None:
        """The next event if it is due."""
        if self._waiting and self._waiting[0][0] <= self._clock():
            return self._waiting.popleft()[1]
        return None

    def arm(self) -> None:
        """Wake the reader when the first event is due."""
        self.close()
        wait_s = max(0.0, self._waiting[0][0] - self._clock())
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._wake)

    def close(self) -> None:
        """Wake nobody any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
