"""Whose turn it is within one priority class of the transfer scheduler. No I/O, no clock.

First a tenant's: of those with a chunk to start the one that was given the fewest bytes for its weight. One whose next
transfer is small may be ahead of the others by ``ahead_bytes``, so that a small transfer passes everybody's large ones,
and many of them pass nobody for long. A new tenant, or one that had nothing to start, is level with the others.

Then one of its transfers': small ones before large ones, which get their share of the tenant's bytes, and of these the
one that was given the fewest. A new or held-up one is level with the others.
"""

from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(slots=True)
class Standing:
    """What a transfer was given in its class. ``order``: that of opening. ``weight``: its tenant's, above 0."""

    order: int
    tenant: str
    weight: float
    given_bytes: int = 0


class Head(NamedTuple):
    """A chunk that a transfer would start next."""

    standing: Standing
    transfer_id: str
    size_bytes: int
    large: bool


@dataclass(slots=True)
class _Tenant:
    """What one tenant's transfers were given."""

    spent: float
    """Bytes over weight."""
    large_credit_bytes: float = 0.0
    level_bytes: dict[bool, int] = field(default_factory=lambda: {False: 0, True: 0})
    """By whether they are large: what the transfer whose turn was last had been given before it."""


_Heads = dict[bool, Head]
"""A tenant's next small and its next large one."""


class Turns:
    """Who was given what. ``large_share``: of a tenant's bytes, while it has small transfers, too."""

    def __init__(self, large_share: float, ahead_bytes: int) -> None:
        self._large_per_small = large_share / (1 - large_share)
        self._ahead_bytes = ahead_bytes
        self._tenants: dict[str, _Tenant] = {}
        self._level = 0.0
        """The least that a tenant with something to start had spent."""
        self.passed_bytes = 0
        """What went to higher classes while this one had a chunk to start, and is not made up for yet."""

    def choose(self, heads: Iterable[Head]) -> Head:
        """Whose turn it is, of all that might start; there must be one."""
        by_tenant: dict[str, _Heads] = {}
        for head in heads:
            self._weigh(by_tenant.setdefault(head.standing.tenant, {}), head)
        for name in by_tenant:
            tenant = self._tenants[name]
            tenant.spent = max(tenant.spent, self._level)
        self._level = min(self._tenants[name].spent for name in by_tenant)
        return min((self._next_of(name, own) for name, own in by_tenant.items()), key=self._due)

    def give(self, chosen: Head, heads: Iterable[Head]) -> None:
        """Note that the one that ``choose`` chose of these starts."""
        standing = chosen.standing
        tenant = self._tenants[standing.tenant]
        larges = {head.large for head in heads if head.standing.tenant == standing.tenant}
        if len(larges) == 2:
            change = -1.0 if chosen.large else self._large_per_small
            tenant.large_credit_bytes += chosen.size_bytes * change
        elif chosen.large:
            tenant.large_credit_bytes = 0.0
        tenant.level_bytes[chosen.large] = standing.given_bytes
        tenant.spent += chosen.size_bytes / standing.weight
        standing.given_bytes += chosen.size_bytes

    def forget(self, open_tenants: Container[str]) -> None:
        """Forget tenants without open transfers, but those that are ahead of who has any."""
        self._tenants = {
            name: tenant for name, tenant in self._tenants.items() if name in open_tenants or tenant.spent > self._level
        }

    def reset(self) -> None:
        """Nobody has an open transfer: forget all."""
        self._tenants.clear()
        self._level = 0.0

    def _weigh(self, own: _Heads, head: Head) -> None:
        """Keep the one that is next among those of its tenant and size."""
        standing = head.standing
        tenant = self._tenants.setdefault(standing.tenant, _Tenant(self._level))
        # Who could not use its turns does not save them up.
        standing.given_bytes = max(standing.given_bytes, tenant.level_bytes[head.large])
        best = own.get(head.large)
        if best is None or (standing.given_bytes, standing.order) < (best.standing.given_bytes, best.standing.order):
            own[head.large] = head

    def _next_of(self, name: str, own: _Heads) -> Head:
        large = own.get(True)
        if large is None:
            return own[False]
        is_due = False not in own or self._tenants[name].large_credit_bytes >= large.size_bytes
        return large if is_due else own[False]

    def _due(self, head: Head) -> float:
        tenant, weight = self._tenants[head.standing.tenant], head.standing.weight
        return tenant.spent - (0.0 if head.large else self._ahead_bytes / weight)
