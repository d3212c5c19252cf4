"""How much memory requests may hold: the bytes of their bodies, as they come, times the answers that they ask for.

Nobody has a fixed part: a tenant may hold no more than is free then. So one alone gets half, and who holds nothing yet
always finds room: half of what the others left.
"""

from collections import Counter
from dataclasses import dataclass, field

from gateway.errors import GatewayError


@dataclass(slots=True)
class Bodies:
    """What is held. ``most_bytes``: by all requests together."""

    most_bytes: int
    used_bytes: int = 0
    _by_tenant: Counter[str] = field(default_factory=Counter)

    def take(self, tenant: str, size_bytes: int) -> bool:
        """Hold more, if there is as much room as the tenant would then hold."""
        held = self._by_tenant[tenant] + size_bytes
        if held > self.most_bytes - self.used_bytes - size_bytes:
            return False
        self._by_tenant[tenant] = held
        self.used_bytes += size_bytes
        return True

    def give_back(self, tenant: str, size_bytes: int) -> None:
        """Hold less."""
        self.used_bytes -= size_bytes
        self._by_tenant[tenant] -= size_bytes
        if not self._by_tenant[tenant]:
            del self._by_tenant[tenant]


@dataclass(slots=True)
class HeldBytes:
    """What one request holds."""

    bodies: Bodies
    tenant: str
    held_bytes: int = 0

    def grow(self, size_bytes: int) -> None:
        """Hold more. Raises GatewayError: 413 for what would never fit, else 429."""
        if self.bodies.take(self.tenant, size_bytes):
            self.held_bytes += size_bytes
            return
        close = {"connection": "close"}
        if (self.held_bytes + size_bytes) * 2 > self.bodies.most_bytes:
            message = "The request's body, times the choices that it asks for, is more than the gateway holds."
            raise GatewayError(413, message, headers=close)
        message = "The bodies of your running requests are as much as the gateway holds for you now."
        raise GatewayError(429, message, code="bodies_too_large", retry_after_s=1.0, headers=close)

    def release(self) -> None:
        """Hold nothing any more. Idempotent."""
        self.bodies.give_back(self.tenant, self.held_bytes)
        self.held_bytes = 0
