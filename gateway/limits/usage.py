"""What each tenant has used, by model and hour, over all gateway processes.

Each process counts in memory and adds what is new to Redis about once a second; a batch has a number, so one whose
answer was lost is not counted twice. A process that is killed loses a second, one that ends nothing. Hours are kept for
90 days. While Redis is away counts wait in memory.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from uuid import uuid4

from prometheus_client import CollectorRegistry, Counter

from gateway.redis.client import AWAY, RedisClient, SharedRedis, digest
from gateway.tasks import end_task, run_every

log = logging.getLogger(__name__)

HOUR_S = 3600
KEPT_S = 90 * 86_400
_MOST_AT_ONCE = 256


@dataclass(slots=True)
class Use:
    """What was used. ``cost``: in the currency of the prices in the settings."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    p_tokens: int = 0
    """Tokens that clients got from prefill instances; the next two: from RLD and from MD."""
    rld_tokens: int = 0
    md_tokens: int = 0
    other_tokens: int = 0
    """Tokens that clients got from anywhere else."""
    wan_bytes: int = 0
    cost: float = 0.0
    slo_met: int = 0
    """Answers that kept the tenant's ``slo``; the next: those that did not."""
    slo_missed: int = 0
    refused: int = 0
    """Requests that a limit or a full queue kept out."""

    def add(self, other: "Use") -> None:
        """Count another use too."""
        for name, amount in other.amounts().items():
            setattr(self, name, getattr(self, name) + amount)

    def amounts(self) -> dict[str, float]:
        """What is above 0, by name."""
        return {name: amount for name in AMOUNTS if (amount := getattr(self, name))}


AMOUNTS = tuple(one.name for one in fields(Use))


@dataclass(slots=True)
class _Batch:
    number: int
    uses: dict[str, Use] = field(default_factory=dict)
    """By model."""


def use_of_slo(met: bool | None) -> Use:
    """Return what an answer adds by having kept its ``slo``, or not; None: it does not count."""
    return Use(slo_met=int(met is True), slo_missed=int(met is False))


UsageHour = tuple[str, int]
"""Tenant, hour since 1970."""


class UsageMeter:
    """Counts. ``clock``: Unix seconds; ``on_flush`` is called after each try."""

    def __init__(
        self,
        redis: SharedRedis,
        registry: CollectorRegistry,
        prefix: str = "pdd",
        *,
        interval_s: float = 1.0,
        timeout_s: float = 2.0,
        clock: Callable[[], float] = time.time,
        on_flush: Callable[[], None] = lambda: None,
    ) -> None:
        self._prefix = prefix
        self._interval_s = interval_s
        self._clock = clock
        self._on_flush = on_flush
        self._process = uuid4().hex
        self._number = 0
        self._new: dict[UsageHour, dict[str, Use]] = {}
        self._sent: dict[UsageHour, _Batch] = {}
        self._task: asyncio.Task[None] | None = None
        self.total = Use()
        """Of all tenants, since this process began."""
        self._redis = redis.client("usage", timeout_s)
        self._counters = {
            name: Counter(f"pdd_tenant_{name}", text, ["tenant"], registry=registry)
            for name, text in (
                ("requests", "Requests by tenant"),
                ("refused", "Requests that a limit or the full queue kept out, by tenant"),
                ("prompt_tokens", "Prompt tokens by tenant"),
                ("cached_tokens", "Prompt tokens that were in cache, by tenant"),
                ("completion_tokens", "Tokens that clients got, by tenant"),
                ("wan_bytes", "KV bytes that crossed, by tenant"),
                ("cost", "Cost by the prices in the settings, by tenant"),
            )
        }
        self._slo = Counter(
            "pdd_slo_requests",
            "Answers by tenant, and whether they kept `slo`",
            ["tenant", "met"],
            registry=registry,
        )

    def note(self, tenant: str, model: str, use: Use) -> None:
        """Count. ``tenant`` must be one that was identified, as it becomes a label."""
        self.total.add(use)
        hour = int(self._clock()) // HOUR_S
        self._new.setdefault((tenant, hour), {}).setdefault(model, Use()).add(use)
        completion = use.p_tokens + use.rld_tokens + use.md_tokens + use.other_tokens
        for name, counter in self._counters.items():
            amount = completion if name == "completion_tokens" else getattr(use, name)
            if amount:
                counter.labels(tenant).inc(amount)
        for met, amount in (("true", use.slo_met), ("false", use.slo_missed)):
            if amount:
                self._slo.labels(tenant, met).inc(amount)

    async def start(self) -> None:
        """Share in the background from here on."""
        self._task = asyncio.create_task(run_every(self._interval_s, self.flush))

    async def aclose(self) -> None:
        """Share what is left, if Redis answers, and end."""
        await end_task(self._task)
        while (self._new or self._sent) and await self.flush():
            pass
        if self._new or self._sent:
            log.error("usage of %d tenant hours was lost: Redis does not answer", len({*self._new, *self._sent}))

    async def flush(self) -> bool:
        """Add what is new; False when Redis does not take part, which loses nothing."""
        for bucket in list(self._new)[:_MOST_AT_ONCE]:
            if bucket not in self._sent:
                self._number += 1
                self._sent[bucket] = _Batch(self._number, self._new.pop(bucket))
        sent = dict(self._sent)
        try:
            if sent:
                async with self._redis.step():
                    await self._send(self._redis, sent)
        except AWAY:
            return False
        else:
            for bucket in sent:
                del self._sent[bucket]
            return True
        finally:
            self._on_flush()

    async def _send(self, redis: RedisClient, sent: dict[UsageHour, _Batch]) -> None:
        add = redis.script("usage_add")
        async with redis.commands.pipeline(transaction=False) as pipeline:
            for (tenant, hour), batch in sent.items():
                arguments: list[str | float] = [self._process, batch.number, KEPT_S]
                for model, use in batch.uses.items():
                    for name, amount in use.amounts().items():
                        arguments += [f"{name}:{model}", amount]
                await add([_key(self._prefix, tenant, hour)], arguments, client=pipeline)
            await pipeline.execute()


async def read_usage(
    redis: RedisClient, tenant: str, first_hour: int, last_hour: int, prefix: str = "pdd"
) -> dict[str, Use]:
    """Return a tenant's use by model, from one hour to another, both included. Raises ``AWAY``."""
    found: dict[str, Use] = {}
    async with redis.commands.pipeline(transaction=False) as pipeline:
        for hour in range(first_hour, last_hour + 1):
            pipeline.hgetall(_key(prefix, tenant, hour))
        hours = await pipeline.execute()
    for amounts in hours:
        for packed, amount in amounts.items():
            name, _, model = packed.decode().partition(":")
            if name in AMOUNTS:
                use = found.setdefault(model, Use())
                setattr(use, name, getattr(use, name) + (float(amount) if name == "cost" else int(float(amount))))
    return found


def _key(prefix: str, tenant: str, hour: int) -> str:
    return f"{prefix}:usage:{{{digest(tenant)}}}:{hour}"
