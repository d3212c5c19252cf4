"""Who is to blame for a failed leg: the instance, or the request that made it fail.

A request that failed on two instances of a role is suspect itself and is held against neither. One that then worked on
another instance is proof against the first. As long as neither is known, all that one tenant's requests did to an
instance is one doubt, so that no tenant alone can take an instance out.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

MOST_REQUESTS = 4096
"""Requests that failed and are remembered; of more, the oldest are forgotten."""
MOST_PROOFS = 64
"""Held against one instance: more change nothing."""


@dataclass(frozen=True, slots=True)
class Culprit:
    """A client's request, all its choices together, and whose it is."""

    request: str
    tenant: str


@dataclass(slots=True)
class Charges:
    """What is held against an instance since it last brought a token."""

    unnamed: int = 0
    """Failures that no request had part in."""
    proven: set[str] = field(default_factory=set)
    doubtful: dict[str, str] = field(default_factory=dict)
    """Tenants by request."""

    @property
    def weight(self) -> int:
        """How many failures this amounts to."""
        return self.unnamed + len(self.proven) + len(set(self.doubtful.values()))

    def drop(self, request: str) -> None:
        """Hold a request against it no more."""
        self.proven.discard(request)
        self.doubtful.pop(request, None)

    def clear(self) -> None:
        """Hold nothing against it."""
        self.unnamed = 0
        self.proven.clear()
        self.doubtful.clear()


class Charged(Protocol):
    """An instance as far as blame goes."""

    charges: Charges


One = TypeVar("One", bound=Charged)


@dataclass(slots=True)
class _Case(Generic[One]):
    failed_on: list[One]
    is_suspect: bool = False


class Blame(Generic[One]):
    """What is known of requests that failed. ``role``: any name for instances that do the same work."""

    def __init__(self) -> None:
        self._cases: OrderedDict[tuple[str, str], _Case[One]] = OrderedDict()

    def note_failure(self, instance: One, role: str, culprit: Culprit | None) -> Iterable[One]:
        """A leg failed. Return the instances of which something else is held now."""
        if culprit is None:
            instance.charges.unnamed += 1
            return [instance]
        case = self._cases.setdefault((culprit.request, role), _Case([]))
        self._cases.move_to_end((culprit.request, role))
        if len(self._cases) > MOST_REQUESTS:
            self._cases.popitem(last=False)
        if all(instance is not other for other in case.failed_on):
            case.failed_on.append(instance)
        if len(case.failed_on) > 1:
            case.is_suspect = True
            for other in case.failed_on:
                other.charges.drop(culprit.request)
            return case.failed_on
        if len(instance.charges.doubtful) < MOST_PROOFS and culprit.request not in instance.charges.proven:
            instance.charges.doubtful[culprit.request] = culprit.tenant
        return [instance]

    def note_worked(self, instance: One, role: str, culprit: Culprit) -> Iterable[One]:
        """A leg went well to its end. Return the instances against which this is proof."""
        case = self._cases.get((culprit.request, role)) if self._cases else None
        if case is None or case.is_suspect or case.failed_on[0] is instance:
            return []
        del self._cases[culprit.request, role]
        charges = case.failed_on[0].charges
        if charges.doubtful.pop(culprit.request, None) is None:
            return []
        if len(charges.proven) < MOST_PROOFS:
            charges.proven.add(culprit.request)
        return case.failed_on
