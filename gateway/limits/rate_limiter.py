"""Holds tenants to their limits over all gateway processes, or alone while Redis is away.

Requests and tokens per minute are token buckets. An admission takes what the request may use at most; the end of the
answer gives back what it did not, or charges what it used beyond. Answers that run hold leases, which are renewed
while they run and end by themselves when their process dies. Bytes over the WAN are a bucket, too, that is charged as
they cross.

While Redis is away each process holds its tenants to its share of the limits, which it counts by itself: an admission
then costs no time at all. What runs is made known as soon as Redis answers again.
"""

import time
from collections.abc import Callable
from typing import Any

from gateway.limits.buckets import (
    SLOT_WAIT_S,
    Lease,
    LimitReached,
    Meter,
    RateLimitStatus,
    Rates,
    RateVerdict,
    RequestTooLarge,
)
from gateway.limits.shared import SharedLimits
from gateway.redis.client import SharedRedis


class RateLimiter:
    """Admits requests.

    ``processes``: how many gateway processes lived when that was last known. ``options``: see ``SharedLimits``.
    """

    def __init__(
        self,
        redis: SharedRedis,
        processes: Callable[[], int],
        *,
        clock: Callable[[], float] = time.monotonic,
        **options: Any,
    ) -> None:
        self._processes = processes
        self._clock = clock
        self._running: dict[str, set[Lease]] = {}
        self._meters: dict[str, Meter] = {}
        self._budgets: dict[str, int] = {}
        """Bytes over the WAN a minute, of tenants that were let in under such a limit."""
        self._refused: dict[str, tuple[float, Rates, LimitReached]] = {}
        """When a tenant whose requests were used up may ask again, under which limits, and how it was refused."""
        self._shared = SharedLimits(redis, self._running, **options)

    @property
    def is_local(self) -> bool:
        """Whether other processes are not counted now although there may be some."""
        return not self._shared.up

    async def start(self) -> None:
        """Share the limits from here on."""
        await self._shared.start()

    async def aclose(self) -> None:
        """Tell Redis of the last ends, if it answers, and end."""
        await self._shared.aclose()

    def running(self, tenant: str) -> int:
        """Answers of a tenant that this process runs under a limit."""
        return len(self._running.get(tenant, ()))

    def look(self, tenant: str, rates: Rates, visitors: int) -> None:
        """Refuse a request, as far as this process knows without asking, that ``admit`` would refuse.

        ``visitors``: requests of the tenant that are in the process, admitted or not. Raises LimitReached.
        """
        if (known := self._refused.get(tenant)) is not None:
            until_s, under, refusal = known
            wait_s = until_s - self._clock()
            if wait_s > 0 and rates == under:
                raise LimitReached(RateVerdict(refusal.status, "requests", wait_s), "requests")
            del self._refused[tenant]
        if rates.concurrent is not None and visitors >= rates.concurrent:
            raise LimitReached(RateVerdict(RateLimitStatus(), "concurrent", SLOT_WAIT_S), "concurrent")

    async def admit(self, tenant: str, rates: Rates, prompt_tokens: int, output_tokens: int) -> Lease:
        """Let one request run. ``output_tokens``: the most it may make. Raises LimitReached and RequestTooLarge."""
        if rates.wan_bytes_per_min is not None:
            self._budgets[tenant] = rates.wan_bytes_per_min
        if not rates.any:
            return Lease(tenant, 0)
        if rates.tokens_per_min is not None and prompt_tokens > rates.tokens_per_min:
            raise RequestTooLarge
        wanted = prompt_tokens + output_tokens
        try:
            lease = await self._admit_shared(tenant, rates, wanted) or self._admit_here(tenant, rates, wanted)
        except LimitReached as error:
            if error.refused_by == "requests":
                self._refused[tenant] = (self._clock() + error.retry_after_s, rates, error)
            raise
        lease.end = self._end
        self._running.setdefault(tenant, set()).add(lease)
        return lease

    def charge_wan(self, tenant: str, wan_bytes: int) -> None:
        """Bytes of a tenant's KV have crossed; only tenants that were admitted under such a limit are charged."""
        limit = self._budgets.get(tenant)
        if limit is None:
            return
        if self._shared.up:
            self._shared.charge_wan(tenant, wan_bytes, limit)
        elif (meter := self._meters.get(tenant)) is not None:
            meter.charge_wan(wan_bytes, max(1, limit // max(1, self._processes())), self._clock())

    async def _admit_shared(self, tenant: str, rates: Rates, wanted_tokens: int) -> Lease | None:
        if not self._shared.up:
            return None
        lease = Lease(tenant, rates.reserve(wanted_tokens), charged_in_redis=True, in_redis=True)
        verdict = await self._shared.ask(lease, rates)
        if verdict is None:
            return None
        if verdict.refused_by is not None:
            raise LimitReached(verdict, verdict.refused_by)
        self._meters.pop(tenant, None)
        lease.status = verdict.status
        return lease

    def _admit_here(self, tenant: str, rates: Rates, wanted_tokens: int) -> Lease:
        own = rates.share(max(1, self._processes()))
        meter = self._meters.setdefault(tenant, Meter())
        lease = Lease(tenant, own.reserve(wanted_tokens))
        verdict = meter.ask(own, lease.reserved_tokens, self.running(tenant), self._clock())
        if verdict.refused_by is not None:
            raise LimitReached(verdict, verdict.refused_by)
        lease.status = verdict.status
        return lease

    def _end(self, lease: Lease, tokens: int) -> None:
        leases = self._running[lease.tenant]
        leases.discard(lease)
        if not leases:
            del self._running[lease.tenant]
        unused = lease.reserved_tokens - tokens
        if not lease.charged_in_redis and lease.tenant in self._meters:
            self._meters[lease.tenant].give_back(unused)
        if lease.in_redis:
            self._shared.end(lease, unused if lease.charged_in_redis else 0)
