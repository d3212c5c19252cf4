"""Evens out the joint.

While MD catches up, RLD's tokens are given out a little more slowly than they come. What is then in reserve is given
out while MD's first token is on its way, so that the client sees a slightly slower stretch instead of a stop.
"""

from dataclasses import dataclass

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
        self._learn(now_s, tokens)
        due_s = now_s
        if self._itl_s is not None and (filling or self._due_s > now_s):
            pace_s = self._itl_s * tokens * (STRETCH if filling else EASE)
            due_s = min(max(now_s, self._due_s + pace_s), now_s + self.reserve_s)
        self._due_s = max(due_s, self._due_s)
        return self._due_s

    def _learn(self, now_s: float, tokens: int) -> None:
        if self._arrived_s is not None:
            seen_s = (now_s - self._arrived_s) / tokens
            if self._itl_s is None:
                self._itl_s = seen_s
            elif seen_s < PAUSE * self._itl_s:
                self._itl_s += NEWEST_SHARE * (seen_s - self._itl_s)
        self._arrived_s = now_s
