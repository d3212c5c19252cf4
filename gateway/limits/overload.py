"""How many requests a process can carry, learnt from its event loop, so that more are refused and not suffered.

Beyond that the streams that run keep pace for long, and first tokens come later and later: each new request needs
some twenty turns of the loop, and a turn takes as long as all streams need. So whenever the loop was late for half a
second on end because of the process's own work, a tenth fewer requests than run then are let in; while it is on time,
the bound grows again. A process that is late because it gets no processor is no fuller for it: nothing is refused.
"""

import math

LATE_S = 0.01
"""Half of a turn of the loop, as a tick falls anywhere into one."""
BUSY_SHARE = 0.8
"""Of a processor; who has less waits for others."""
LATE_TICKS = 10
SHRINK = 0.9
GROW = 1.005
LEAST = 8
"""So many requests may always run: a few large ones that hold the loop are not many streams."""


class LoadGuard:
    """Counts the requests of a process. ``most``: how many it takes, as of its last overload; at first, any number."""

    def __init__(self) -> None:
        self.running = 0
        self.most = math.inf
        self._late_ticks = 0

    @property
    def has_room(self) -> bool:
        """Whether one more request can be carried."""
        return self.running < self.most

    def enter(self) -> None:
        """A request has come; ``leave`` must follow."""
        self.running += 1

    def leave(self) -> None:
        """It has ended."""
        self.running -= 1

    def note(self, late_s: float, busy_share: float) -> None:
        """The loop was late by so much, while the process had such a share of a processor."""
        if late_s < LATE_S or busy_share < BUSY_SHARE:
            self._late_ticks = 0
            self.most = max(self.most + 1, self.most * GROW) if self.most < 2 * self.running + LEAST else self.most
            return
        self._late_ticks += 1
        if self._late_ticks == LATE_TICKS:
            self._late_ticks = 0
            self.most = max(LEAST, SHRINK * min(self.most, self.running))
