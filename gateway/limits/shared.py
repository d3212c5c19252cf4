"""Limits in Redis: one step for each admission, all in order.

One task sends what there is to send: ends of leases and bytes that crossed first, then renewals, then admissions. So an
admission never overtakes the end of the lease before it, and many admissions share a round trip. Time is Redis's own.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from backends.transport.patience import PeerTimeout
from gateway.limits.buckets import Lease, Left, LimitKind, RateLimitStatus, Rates, RateVerdict
from gateway.redis.client import AWAY, SharedRedis, digest
from gateway.tasks import end_task

_MOST_AT_ONCE = 512
_NO_LIMIT = -1
_REFUSERS: tuple[LimitKind | None, ...] = (None, "requests", "tokens", "concurrent", "wan_bytes")
_RENEWALS_A_LEASE = 4
_LAST_TIMEOUT_S = 2.0
"""When the process ends nobody waits for an admission any more."""


@dataclass(slots=True, eq=False)
class _Ask:
    lease: Lease
    rates: Rates
    answer: "asyncio.Future[RateVerdict | None]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class SharedLimits:
    """Asks Redis for admissions, tells it of ends, and keeps the leases in ``running`` (by tenant) alive.

    ``on_exchange`` is called after each try, also when nothing else is to be sent. Unless the last one succeeded, which
    makes it ``up``, nothing waits for Redis.
    """

    def __init__(
        self,
        redis: SharedRedis,
        running: Mapping[str, Collection[Lease]],
        prefix: str = "pdd",
        *,
        timeout_s: float = 0.25,
        interval_s: float = 1.0,
        lease_s: float = 15.0,
        on_exchange: Callable[[], None] = lambda: None,
    ) -> None:
        self._running = running
        self._prefix = f"{prefix}:limits"
        self._timeout_s = timeout_s
        self._interval_s = interval_s
        self._lease_ms = int(lease_s * 1000)
        self._on_exchange = on_exchange
        self._asks: list[_Ask] = []
        self._ended: dict[str, tuple[str, int]] = {}
        self._crossed: dict[str, tuple[int, int]] = {}
        """Bytes over the WAN by tenant, since the last exchange, and how many may cross in a minute."""
        self._renewed_s = 0.0
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._redis = redis.client("limits", timeout_s)
        self._admit, self._settle, self._renew, self._charge = (
            self._redis.script(f"limits_{name}") for name in ("admit", "settle", "renew", "charge")
        )

    @property
    def up(self) -> bool:
        """See the class."""
        return self._redis.up

    async def start(self) -> None:
        """Exchange in the background from here on; a Redis that does not answer is not waited for."""
        await self.exchange()
        self._task = asyncio.create_task(self._run())

    async def aclose(self) -> None:
        """Tell Redis of the last ends, if it answers, and end."""
        await end_task(self._task)
        if self.up:
            await self.exchange(_LAST_TIMEOUT_S)

    async def ask(self, lease: Lease, rates: Rates) -> RateVerdict | None:
        """Take a slot and tokens for a lease; None: Redis did not say, and this lease will hold nothing there."""
        ask = _Ask(lease, rates)
        self._asks.append(ask)
        self._wake.set()
        is_answered = False
        try:
            # An exchange that runs, and the one after it, have each ended before that.
            async with PeerTimeout(3 * self._timeout_s):
                verdict = await ask.answer
            is_answered = True
        except TimeoutError:
            return None
        finally:
            if not is_answered:
                self._withdraw(ask)
        return verdict

    def end(self, lease: Lease, unused_tokens: int) -> None:
        """Give a lease's slot and its unused tokens back, soon; below 0 it used more than it took."""
        self._ended[lease.id] = (lease.tenant, unused_tokens)
        self._wake.set()

    def charge_wan(self, tenant: str, wan_bytes: int, per_min: int) -> None:
        """Take bytes that have crossed, with the next exchange; not again if its answer is lost."""
        self._crossed[tenant] = (self._crossed.get(tenant, (0, 0))[0] + wan_bytes, per_min)

    def _withdraw(self, ask: _Ask) -> None:
        """Nobody waits for the answer: what it may have taken, or may take yet, is given back after it."""
        if ask in self._asks:
            self._asks.remove(ask)
        else:
            self.end(ask.lease, ask.lease.reserved_tokens)

    async def _run(self) -> None:
        while True:
            if not self.up:
                await asyncio.sleep(self._interval_s)
            elif not self._wake.is_set():
                timer = asyncio.get_running_loop().call_later(self._interval_s, self._wake.set)
                await self._wake.wait()
                timer.cancel()
            await self.exchange()

    async def exchange(self, timeout_s: float | None = None) -> bool:
        """Send what is to be sent now, and see whether Redis answers within ``timeout_s`` (None: the usual)."""
        self._wake.clear()
        asks, self._asks = self._asks[:_MOST_AT_ONCE], self._asks[_MOST_AT_ONCE:]
        ended = dict(islice(self._ended.items(), _MOST_AT_ONCE))
        crossed, self._crossed = self._crossed, {}
        replies: Sequence[Any] | None = None
        try:
            async with self._redis.step(timeout_s):
                replies = await self._send(asks, ended, crossed)
        except AWAY:
            pass
        finally:
            if replies is None:
                asks, self._asks = [*asks, *self._asks], []
            self._answer(asks, None if replies is None else replies[len(replies) - len(asks) :])
        if replies is not None:
            for lease_id in ended:
                del self._ended[lease_id]
        if self._asks or (self.up and self._ended):
            self._wake.set()
        self._on_exchange()
        return self.up

    async def _send(
        self, asks: Sequence[_Ask], ended: Mapping[str, tuple[str, int]], crossed: Mapping[str, tuple[int, int]]
    ) -> list[Any]:
        async with self._redis.commands.pipeline(transaction=False) as pipeline:
            pipeline.ping()
            if not self.up:
                # Once for each connection to a server that may be new: a check before each exchange costs a round trip.
                for script in (self._admit, self._settle, self._renew, self._charge):
                    pipeline.script_load(script.script)
            for lease_id, (tenant, unused_tokens) in ended.items():
                pipeline.evalsha(self._settle.sha, 2, *self._keys(tenant), lease_id, unused_tokens)
            for tenant, charge in crossed.items():
                pipeline.evalsha(self._charge.sha, 1, self._keys(tenant)[0], *charge)
            # A Redis that was away is first asked whether it answers: what it may not know of need not be ended there.
            if not self.up:
                self._renewed_s = 0.0
            elif time.monotonic() - self._renewed_s >= self._lease_ms / 1000 / _RENEWALS_A_LEASE:
                self._renewed_s = time.monotonic()
                for tenant, leases in self._running.items():
                    for lease in leases:
                        lease.in_redis = True
                    ids = [lease.id for lease in leases]
                    pipeline.evalsha(self._renew.sha, 1, self._keys(tenant)[1], self._lease_ms, *ids)
            for ask in asks:
                keys, lease, rates = self._keys(ask.lease.tenant), ask.lease, ask.rates
                per_min = (rates.requests_per_min, rates.tokens_per_min, rates.wan_bytes_per_min, rates.concurrent)
                limits = [_NO_LIMIT if limit is None else limit for limit in per_min]
                pipeline.evalsha(self._admit.sha, 2, *keys, lease.id, self._lease_ms, lease.reserved_tokens, *limits)
            return await pipeline.execute()

    def _answer(self, asks: Sequence[_Ask], replies: Sequence[Any] | None) -> None:
        for at, ask in enumerate(asks):
            if replies is None:
                self.end(ask.lease, ask.lease.reserved_tokens)
            if not ask.answer.done():
                ask.answer.set_result(None if replies is None else _read(replies[at], ask.rates))

    def _keys(self, tenant: str) -> list[str]:
        return [f"{self._prefix}:{{{digest(tenant)}}}:{kind}" for kind in ("buckets", "slots")]


def _read(reply: Sequence[int], rates: Rates) -> RateVerdict:
    refuser, wait_ms, requests, requests_ms, tokens, tokens_ms = reply
    requests_left = rates.requests_per_min and Left(rates.requests_per_min, requests, requests_ms / 1000)
    tokens_left = rates.tokens_per_min and Left(rates.tokens_per_min, tokens, tokens_ms / 1000)
    return RateVerdict(RateLimitStatus(requests_left or None, tokens_left or None), _REFUSERS[refuser], wait_ms / 1000)
