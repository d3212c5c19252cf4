"""How many connections there may be, of whom, and which of them goes when there is no room.

What counts is the process's descriptors, so a connection counts from its first byte on, handshakes and heads that never
end included. One that has no whole request is only waiting, and makes room for a new one: of those that wait longest,
the one that has sent least.
"""

import resource
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

from backends.transport.accepting import Guest
from gateway.http.proxies import IpNetwork, is_loopback, is_within, name_neighbourhood, read_address

COMPARED, SEARCHED = 16, 256
"""Of those that wait longest; the second: for those of one address."""
RESERVE = 256
RESERVED_SHARE = 4
"""A part of the descriptors that is kept for engines, Redis and files: one of so many, and at least ``RESERVE``."""


@dataclass(slots=True)
class Doors:
    """Counts connections. ``most``: in all; ``refusal``: what others are told.

    An address holds no more than are free, but for trusted proxies and this machine.
    """

    most: int = 10_000
    trusted: Sequence[IpNetwork] = ()
    refusal: bytes = b""
    _peers: dict[Guest, str] = field(default_factory=dict)
    _by_peer: Counter[str] = field(default_factory=Counter)
    _waiting: OrderedDict[Guest, None] = field(default_factory=OrderedDict)

    def __len__(self) -> int:
        return len(self._peers)

    def enter(self, guest: Guest, peer: str) -> bool:
        """Count a new connection, in place of one that waits if need be; False: there is no room."""
        name = self._name(peer)
        if name and self._by_peer[name] + 1 > self.most - len(self) - 1:
            own = [one for one in islice(self._waiting, SEARCHED) if self._peers[one] == name]
            if not self._make_room(own):
                return False
        elif len(self) >= self.most:
            # Never the newest: they had no time yet to send anything.
            longest = min(COMPARED, (len(self._waiting) + 1) // 2)
            if not self._make_room(list(islice(self._waiting, longest))):
                return False
        self._peers[guest] = name
        if name:
            self._by_peer[name] += 1
        self._waiting[guest] = None
        return True

    def leave(self, guest: Guest) -> None:
        """It has ended. Idempotent."""
        self._waiting.pop(guest, None)
        if name := self._peers.pop(guest, None):
            self._by_peer[name] -= 1
            if not self._by_peer[name]:
                del self._by_peer[name]

    def wait(self, guest: Guest) -> None:
        """It has no request any more."""
        if guest in self._peers:
            self._waiting[guest] = None

    def serve(self, guest: Guest) -> None:
        """It has a whole request."""
        self._waiting.pop(guest, None)

    def _make_room(self, longest: Sequence[Guest]) -> bool:
        if not longest:
            return False
        least = min(longest, key=lambda guest: guest.sent_bytes)
        self.leave(least)
        least.drop()
        return True

    def _name(self, peer: str) -> str:
        """Return what a peer is counted by; "" for one that stands for many."""
        address = read_address(peer)
        if is_loopback(peer) or (address is not None and is_within(address, self.trusted)):
            return ""
        return name_neighbourhood(peer)


def bound_by_descriptors(most: int) -> int:
    """Return how many connections there may be at most for the process's limit of descriptors."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return most
    return max(1, min(most, limit - max(RESERVE, limit // RESERVED_SHARE)))
