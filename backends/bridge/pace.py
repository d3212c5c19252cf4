"""How many bytes to have on order: enough to keep the link full, little enough that a small transfer is not stuck.

The window is twice what the link delivers within one round trip (the highest rate and the shortest round trip of
recent times). Below the link's rate each round trip doubles it; at the link's rate it settles, with one round trip's
worth of queue. No I/O and no clock: times are passed in.
"""

from collections import deque
from dataclasses import dataclass

_RATE_MEMORY_S = 10.0
_RTT_MEMORY_S = 30.0
_SLACK_S = 0.005
"""Added to the round trip for the time that both ends take."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The state of the link when an order was sent."""

    at_s: float
    arrived_bytes: int


class Pace:
    """Learns rate and round trip of one link. ``rate_cap_bytes_per_s`` bounds the rate it aims at."""

    def __init__(self, *, max_window_bytes: int, rate_cap_bytes_per_s: float | None = None) -> None:
        self._max_window_bytes = max_window_bytes
        self._rate_cap = rate_cap_bytes_per_s
        self._rates: deque[tuple[float, float]] = deque()
        self._rtts: deque[tuple[float, float]] = deque()
        self.arrived_bytes = 0

    def arrived(self, count_bytes: int) -> None:
        """Count received bytes, whatever they were."""
        self.arrived_bytes += count_bytes

    def ordered(self, now_s: float) -> Mark:
        """Note the sending of an order."""
        return Mark(now_s, self.arrived_bytes)

    def delivered(self, mark: Mark, now_s: float) -> None:
        """An order that was sent at ``mark`` has arrived: what came in between is what the link delivered."""
        elapsed_s = now_s - mark.at_s
        if elapsed_s > 0:
            _keep_extreme(self._rates, now_s, (self.arrived_bytes - mark.arrived_bytes) / elapsed_s, _RATE_MEMORY_S)

    def echoed(self, rtt_s: float, now_s: float) -> None:
        """Note a measured round trip."""
        _keep_extreme(self._rtts, now_s, -rtt_s, _RTT_MEMORY_S)

    @property
    def rate_bytes_per_s(self) -> float:
        """Highest rate of recent times; 0 when nothing was measured yet."""
        return self._rates[0][1] if self._rates else 0.0

    @property
    def rtt_s(self) -> float:
        """Shortest round trip of recent times; 0 when nothing was measured yet."""
        return -self._rtts[0][1] if self._rtts else 0.0

    def window_bytes(self, chunk_bytes: int) -> int:
        """Bytes to have on order: besides the round trips' worth, one chunk that is arriving, and one behind it."""
        rate = min(self.rate_bytes_per_s, self._rate_cap or self.rate_bytes_per_s)
        wanted = 2 * rate * (self.rtt_s + _SLACK_S) + chunk_bytes
        return int(min(max(wanted, 2 * chunk_bytes), self._max_window_bytes))


def _keep_extreme(samples: deque[tuple[float, float]], now_s: float, value: float, memory_s: float) -> None:
    """Add a sample to a falling queue, whose first is the highest of the last ``memory_s``; the last never expires."""
    while samples and samples[-1][1] <= value:
        samples.pop()
    samples.append((now_s, value))
    while len(samples) > 1 and samples[0][0] < now_s - memory_s:
        samples.popleft()
