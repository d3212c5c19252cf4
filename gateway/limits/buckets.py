"""The arithmetic of a tenant's limits: token buckets, what is left of them, and the lease of a request that was let in.

No I/O and no clock.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal
from uuid import uuid4

LimitKind = Literal["requests", "tokens", "concurrent", "wan_bytes"]
MINUTE_S = 60.0
SLOT_WAIT_S = 1.0
"""When to come back where an answer of one's own must end first: nobody knows, so soon."""


@dataclass(frozen=True, slots=True)
class Rates:
    """What a tenant may use, over all gateway processes; None: no limit.

    A bucket holds one minute's worth, so after a quiet minute that much may come at once. Nobody knows before how many
    bytes of an answer's KV will cross the WAN: they are charged as they cross, and who is in debt waits.
    """

    requests_per_min: int | None = None
    tokens_per_min: int | None = None
    concurrent: int | None = None
    wan_bytes_per_min: int | None = None

    @property
    def any(self) -> bool:
        """Whether there is something to hold."""
        return any(limit is not None for limit in self._all)

    @property
    def _all(self) -> tuple[int | None, ...]:
        return self.requests_per_min, self.tokens_per_min, self.concurrent, self.wan_bytes_per_min

    def reserve(self, tokens: int) -> int:
        """Tokens to take for a request that may use so many: never more than a full bucket, or it could never run."""
        return tokens if self.tokens_per_min is None else min(tokens, self.tokens_per_min)

    def share(self, processes: int) -> "Rates":
        """One process's part while it cannot ask the others: at least one of each."""
        return Rates(*(None if whole is None else max(1, whole // processes) for whole in self._all))


@dataclass(frozen=True, slots=True)
class Left:
    """What is left of one limit now, and when it is whole again."""

    limit: int
    remaining: int
    reset_s: float


@dataclass(frozen=True, slots=True)
class RateLimitStatus:
    """How a tenant stands; None: it has no such limit."""

    requests: Left | None = None
    tokens: Left | None = None


@dataclass(frozen=True, slots=True)
class RateVerdict:
    """Whether a request may run; ``refused_by`` None: it may. ``retry_after_s``: when to ask again."""

    status: RateLimitStatus
    refused_by: LimitKind | None = None
    retry_after_s: float = 0.0


@dataclass(slots=True)
class TokenBucket:
    """What is left of a limit per minute at a time; below 0 after a debt."""

    level: float
    at_s: float

    def refill(self, limit: int, now_s: float) -> None:
        """Bring it to the present."""
        passed_s = max(0.0, now_s - self.at_s)
        self.level = min(float(limit), self.level + passed_s * limit / MINUTE_S)
        self.at_s = now_s

    def left(self, limit: int) -> Left:
        """Show it."""
        return Left(limit, max(0, int(self.level)), (limit - self.level) * MINUTE_S / limit)


@dataclass(slots=True)
class Meter:
    """One tenant's buckets where only this process counts; the shared ones are in ``limits``, in Lua."""

    requests: TokenBucket | None = None
    tokens: TokenBucket | None = None
    wan_bytes: TokenBucket | None = None

    def ask(self, rates: Rates, reserved_tokens: int, running: int, now_s: float) -> RateVerdict:
        """Take one request and its tokens, or take nothing and say why not. ``running``: answers that hold a slot."""
        self.requests = _refilled(self.requests, rates.requests_per_min, now_s)
        self.tokens = _refilled(self.tokens, rates.tokens_per_min, now_s)
        self.wan_bytes = _refilled(self.wan_bytes, rates.wan_bytes_per_min, now_s)
        if rates.concurrent is not None and running >= rates.concurrent:
            return RateVerdict(self._standing(rates), "concurrent", SLOT_WAIT_S)
        needs: tuple[tuple[TokenBucket | None, int | None, int, LimitKind], ...] = (
            (self.requests, rates.requests_per_min, 1, "requests"),
            (self.tokens, rates.tokens_per_min, reserved_tokens, "tokens"),
            (self.wan_bytes, rates.wan_bytes_per_min, 1, "wan_bytes"),
        )
        waits = [
            ((need - bucket.level) * MINUTE_S / limit, kind)
            for bucket, limit, need, kind in needs
            if bucket is not None and limit is not None and bucket.level < need
        ]
        if waits:
            wait_s, refused_by = max(waits)
            return RateVerdict(self._standing(rates), refused_by, wait_s)
        if self.requests is not None:
            self.requests.level -= 1
        if self.tokens is not None:
            self.tokens.level -= reserved_tokens
        return RateVerdict(self._standing(rates))

    def give_back(self, tokens: float) -> None:
        """Return reserved tokens that were not used; below 0: more were used."""
        if self.tokens is not None:
            self.tokens.level += tokens

    def charge_wan(self, wan_bytes: int, limit: int, now_s: float) -> None:
        """Take what has crossed, also beyond what there is."""
        if self.wan_bytes is not None:
            self.wan_bytes.refill(limit, now_s)
            self.wan_bytes.level -= wan_bytes

    def _standing(self, rates: Rates) -> RateLimitStatus:
        requests, tokens = self.requests, self.tokens
        return RateLimitStatus(
            requests.left(rates.requests_per_min) if requests and rates.requests_per_min else None,
            tokens.left(rates.tokens_per_min) if tokens and rates.tokens_per_min else None,
        )


def _refilled(bucket: TokenBucket | None, limit: int | None, now_s: float) -> TokenBucket | None:
    if limit is None:
        return None
    bucket = bucket or TokenBucket(limit, now_s)
    bucket.refill(limit, now_s)
    return bucket


class LimitReached(Exception):
    """A tenant has used what it may; ``refused_by`` says of what."""

    def __init__(self, verdict: RateVerdict, refused_by: LimitKind) -> None:
        super().__init__(refused_by)
        self.refused_by = refused_by
        self.retry_after_s = verdict.retry_after_s
        self.status = verdict.status


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
    status: RateLimitStatus = field(default_factory=RateLimitStatus)
    charged_in_redis: bool = False
    in_redis: bool = False
    end: Callable[["Lease", int], None] | None = None
    id: str = field(default_factory=lambda: uuid4().hex)

    def settle(self, tokens: int) -> None:
        """Free the slot and charge ``tokens``, what the answer did cost. Only the first call counts; it never waits."""
        if self.end is not None:
            end, self.end = self.end, None
            end(self, tokens)
