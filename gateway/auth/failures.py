"""Counts failures by peer address, so that nobody can try keys out quickly."""

import time
from collections import OrderedDict
from collections.abc import Callable

from gateway.limits.buckets import MINUTE_S, TokenBucket

MOST_PEERS = 10_000


class Failures:
    """Allows each peer ``most_per_min`` failures a minute. Beyond ``most_peers`` the one that failed longest ago is
    forgotten."""

    def __init__(
        self, most_per_min: int, clock: Callable[[], float] = time.monotonic, most_peers: int = MOST_PEERS
    ) -> None:
        self._most_per_min = most_per_min
        self._clock = clock
        self._most_peers = most_peers
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def note(self, peer: str) -> float:
        """Count a failure; seconds until the peer may fail again, 0 where it still may now."""
        now_s = self._clock()
        bucket = self._buckets.setdefault(peer, TokenBucket(self._most_per_min, now_s))
        self._buckets.move_to_end(peer)
        if len(self._buckets) > self._most_peers:
            self._buckets.popitem(last=False)
        bucket.refill(self._most_per_min, now_s)
        if bucket.level < 1:
            return (1 - bucket.level) * MINUTE_S / self._most_per_min
        bucket.level -= 1
        return 0.0
