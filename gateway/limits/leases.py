"""Leave to run one answer, and the ways in which it can be refused."""

from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import uuid4

from gateway.limits.buckets import LimitKind, RateLimitStatus, RateVerdict


class LimitReached(Exception):
    """A tenant has used what it may; ``refused_by`` says of what."""

    def __init__(self, verdict: RateVerdict, refused_by: LimitKind) -> None:
        super().__init__(refused_by)
        self.refused_by = refused_by
        self.retry_after_s = verdict.retry_after_s
        self.standing = verdict.standing


class RequestTooLarge(Exception):
    """The prompt alone has more tokens than a minute's; waiting does not help."""


@dataclass(slots=True, eq=False)
class Lease:
    """Leave to run one answer. Whatever becomes of the answer, ``settle`` must be called.

    ``in_redis``: Redis may hold its slot. ``charged_in_redis``: its tokens were taken there, not from this process's
    own count.
    """

    tenant: str
    reserved_tokens: int
    standing: RateLimitStatus = field(default_factory=RateLimitStatus)
    charged_in_redis: bool = False
    in_redis: bool = False
    end: Callable[["Lease", int], None] | None = None
    id: str = field(default_factory=lambda: uuid4().hex)

    def settle(self, tokens: int) -> None:
        """Free the slot and charge ``tokens``, what the answer did cost. Only the first call counts; it never waits."""
        if self.end is not None:
            end, self.end = self.end, None
            end(self, tokens)
