"""How many bytes to have on order: enough to keep the link full, little enough that a small transfer is not stuck.

The window is twice what the link delivers within one round trip (the highest rate and the shortest round trip of
recent times). Below the link's rate each round trip doubles it; at the link's rate it settles, with one round trip's
worth of queue. What is told as the link's rate comes from longer spans, over which the jitter of reading evens out.
No I/O and no clock: times are passed in.
"""

from collections import deque
from dataclasses import dataclass

_RATE_MEMORY_S = 10.0
_RTT_MEMORY_S = 30.0
_SPAN_S = (0.1, 0.5)
"""Shortest and longest span of busy time that a told rate is measured over."""
_SLACK_S = 0.015
"""Added to the round trip, for the time and the jitter of both ends."""


@dataclass(frozen=True, slots=True)
class OrderMark:
    """The state of the link when an order was sent."""

    at_s: float
    arrived_bytes: int


class LinkPace:
    """Learns rate and round trip of one link. ``rate_cap_bytes_per_s`` None: use all of the link."""

    def __init__(self, *, max_window_bytes: int, rate_cap_bytes_per_s: float | None = None) -> None:
        self._max_window_bytes = max_window_bytes
        self._rate_cap = rate_cap_bytes_per_s
        self._rates: deque[tuple[float, float]] = deque()
        self._steady_rates: deque[tuple[float, float]] = deque()
        self._busy: deque[OrderMark] = deque()
        self._on_order = 0
        self._next_order_s = 0.0
        self._rtts: deque[tuple[float, float]] = deque()
        self.arrived_bytes = 0

    def arrived(self, count_bytes: int) -> None:
        """Count received bytes, whatever they were."""
        self.arrived_bytes += count_bytes

    def wait_s(self, now_s: float) -> float:
        """How long the next order has to wait for the rate cap's sake."""
        return max(0.0, self._next_order_s - now_s)

    def ordered(self, now_s: float, size_bytes: int) -> OrderMark:
        """Note the sending of an order, which must be ``settled``."""
        if self._rate_cap is not None:
            self._next_order_s = max(now_s, self._next_order_s) + size_bytes / self._rate_cap
        mark = OrderMark(now_s, self.arrived_bytes)
        if not self._on_order:
            self._busy.clear()
            self._busy.append(mark)
        self._on_order += 1
        return mark

    def settled(self) -> None:
        """An order has arrived, or will not."""
        self._on_order -= 1

    def delivered(self, mark: OrderMark, now_s: float) -> None:
        """An order that was sent at ``mark`` has arrived: what came in between is what the link delivered."""
        elapsed_s = now_s - mark.at_s
        if elapsed_s > 0:
            _keep_extreme(self._rates, now_s, (self.arrived_bytes - mark.arrived_bytes) / elapsed_s, _RATE_MEMORY_S)
        shortest_s, longest_s = _SPAN_S
        while len(self._busy) > 1 and self._busy[1].at_s <= now_s - longest_s:
            self._busy.popleft()
        since = self._busy[0]
        if now_s - since.at_s >= shortest_s:
            rate = (self.arrived_bytes - since.arrived_bytes) / (now_s - since.at_s)
            _keep_extreme(self._steady_rates, now_s, rate, _RATE_MEMORY_S)
        self._busy.append(OrderMark(now_s, self.arrived_bytes))

    def echoed(self, rtt_s: float, now_s: float) -> None:
        """Note a measured round trip."""
        _keep_extreme(self._rtts, now_s, -rtt_s, _RTT_MEMORY_S)

    @property
    def rate_bytes_per_s(self) -> float:
        """Highest rate that recently held for a while; 0 when nothing was measured yet."""
        rates = self._steady_rates or self._rates
        return rates[0][1] if rates else 0.0

    @property
    def rtt_s(self) -> float:
        """Shortest round trip of recent times; 0 when nothing was measured yet."""
        return -self._rtts[0][1] if self._rtts else 0.0

    def window_bytes(self, chunk_bytes: int) -> int:
        """Bytes to have on order: besides the round trips' worth, one chunk that is arriving, and one behind it."""
        rate = self._rates[0][1] if self._rates else 0.0
        wanted = 2 * rate * (self.rtt_s + _SLACK_S) + chunk_bytes
        return int(min(max(wanted, 2 * chunk_bytes), self._max_window_bytes))


def _keep_extreme(samples: deque[tuple[float, float]], now_s: float, value: float, memory_s: float) -> None:
    """Add a sample to a falling queue, whose first is the highest of the last ``memory_s``; the last never expires."""
    while samples and samples[-1][1] <= value:
        samples.pop()
    samples.append((now_s, value))
    while len(samples) > 1 and samples[0][0] < now_s - memory_s:
        samples.popleft()
