"""KV that P lends to RLD, where engines fetch it from each other; the link may have it on another path meanwhile.

A ticket is good for one reader, once, and for exactly the prompt that P computed: an engine that is given more ids with
it ends. After the lease P's memory may hold something else.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from backends.types import LegRequest
from gateway.relay.splice_events import LegKind, StartLeg


class NixlLease:
    """One answer's ticket; ``lease_s``: how long it is good."""

    def __init__(self, lease_s: float, clock: Callable[[], float]) -> None:
        self._lease_s = lease_s
        self._clock = clock
        self._ticket: Mapping[str, Any] | None = None
        self._good_until_s = 0.0

    def note(self, ticket: Mapping[str, Any]) -> None:
        """P has said where the KV is."""
        self._ticket = ticket
        self._good_until_s = self._clock() + self._lease_s

    def apply(self, leg: LegRequest, start: StartLeg) -> LegRequest:
        """Have P lend, and give the ticket to the first leg of RLD's that starts at the prompt's end."""
        if start.kind is LegKind.PREFILL:
            return msgspec.structs.replace(leg, lends_kv=True)
        if start.kind is LegKind.RELAY and start.base == 0:
            ticket, self._ticket = self._ticket, None
            if ticket is not None and self._clock() < self._good_until_s:
                return msgspec.structs.replace(leg, kv_ticket=ticket)
        return leg
