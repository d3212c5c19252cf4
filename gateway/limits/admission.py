"""What stands between a checked request and the engines: the tenant's limits, then the queue for a free place.

Whoever enters leaves again, whatever happens; leaving never waits, so no cancellation can get in its way.
"""

import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace

from gateway.errors import GatewayError, RawHeaders
from gateway.limits.bodies import Bodies, HeldBytes
from gateway.limits.buckets import Lease, Left, LimitReached, RateLimitStatus, Rates, RequestTooLarge
from gateway.limits.overload import LoadGuard
from gateway.limits.queues import AdmissionQueue, AdmissionQueues, Overloaded
from gateway.limits.rate_limiter import RateLimiter
from gateway.limits.usage import UsageMeter, Use, use_of_slo
from gateway.telemetry.metrics import Metrics
from policies.rules import Rules

RANKS = {"high": 0, "normal": 1, "low": 2}
"""Classes of the queue, and the priorities that engines see: the smallest goes first."""
OVERLOADED_RETRY_S = 2.0
PREPARED_AT_ONCE = 2
"""Prompts that are rendered and tokenised at a time: as many as the tokeniser has threads."""
SMALL_BYTES = 2000
"""Bodies that take less time than a turn does."""
UNREAD = "(unread)"
"""Stands for the model of a request that was refused before it was read."""
MOST_BODIES_BYTES = 512 << 20
MESSAGES = {
    "requests": "Rate limit reached: {} requests per minute.",
    "tokens": "Rate limit reached: {} tokens per minute.",
    "concurrent": "Rate limit reached: {} requests at once.",
    "wan_bytes": "Rate limit reached: {} bytes of KV over the link per minute.",
}


@dataclass(slots=True)
class Admission:
    """A request that was let in. ``headers``: how its tenant stands, for the answer.

    ``waited_s``: how long it stood in the queue.
    """

    tenant: str
    model: str
    answers: int
    lease: Lease
    admission: "AdmissionControl"
    headers: RawHeaders = field(default_factory=list)
    waited_s: float = 0.0
    has_left: bool = False

    def leave(self, use: Use, charged_tokens: int) -> None:
        """End it: free its place, charge its tokens, count its use. Only the first call counts."""
        if not self.has_left:
            self.has_left = True
            self.lease.settle(charged_tokens)
            if self.answers:
                self.admission.queues.of(self.model).leave(self.answers)
            self.admission.usage.note(self.tenant, self.model, use)


@dataclass(frozen=True, slots=True)
class AdmissionControl:
    """Lets requests in."""

    limits: RateLimiter
    queues: AdmissionQueues
    usage: UsageMeter
    metrics: Metrics
    clock: Callable[[], float] = time.monotonic
    bodies: Bodies = field(default_factory=lambda: Bodies(MOST_BODIES_BYTES))
    preparing: AdmissionQueue = field(default_factory=lambda: AdmissionQueue(lambda: PREPARED_AT_ONCE, 1000, 30.0))
    load: LoadGuard = field(default_factory=LoadGuard)
    visitors: Counter[str] = field(default_factory=Counter)
    """Requests of each tenant, from before their bodies are read to their ends."""

    @contextmanager
    def visit(self, tenant: str, rules: Rules) -> Iterator[HeldBytes]:
        """Take a request whose body was not read yet; the block gets what its body is to be held with.

        A look at what this process knows: who is refused here would be refused once its prompt was tokenised, too.
        Raises GatewayError 429, or 503 where the process carries as much as it can.
        """
        if not self.load.has_room:
            raise self._shed(tenant, UNREAD, rules, "process_full")
        rates = rates_of(rules)
        try:
            self.limits.look(tenant, rates, self.visitors[tenant])
        except LimitReached as error:
            raise self._refuse(error, rates, tenant, UNREAD) from None
        held = HeldBytes(self.bodies, tenant)
        self.visitors[tenant] += 1
        self.load.enter()
        try:
            yield held
        finally:
            held.release()
            self.load.leave()
            self.visitors[tenant] -= 1
            if not self.visitors[tenant]:
                del self.visitors[tenant]

    @asynccontextmanager
    async def turn(self, tenant: str, size_bytes: int) -> AsyncIterator[None]:
        """Wait for a turn to parse or tokenise so much; tenants take turns by the bytes that they had worked on.

        Raises GatewayError 503.
        """
        if size_bytes <= SMALL_BYTES:
            yield
            return
        try:
            await self.preparing.enter(tenant, RANKS["normal"], size_bytes)
        except Overloaded:
            self.metrics.refused.labels("overloaded").inc()
            raise overloaded() from None
        try:
            yield
        finally:
            self.preparing.leave()

    async def enter(
        self, tenant: str, rules: Rules, model: str, prompt_tokens: int, output_tokens: int, answers: int = 1
    ) -> Admission:
        """Wait until a request may run. ``output_tokens``: the most that its answers may have together.

        ``model``: whose place it waits for, and under which its use is counted. ``answers`` 0: it takes no place, so it
        does not wait for one, and no KV crosses for it.
        Raises GatewayError 400, 429 or 503.
        """
        rates = rates_of(rules)
        if not answers:
            rates = replace(rates, wan_bytes_per_min=None)
        try:
            lease = await self.limits.admit(tenant, rates, prompt_tokens, output_tokens)
        except LimitReached as error:
            raise self._refuse(error, rates, tenant, model) from None
        except RequestTooLarge:
            self.metrics.refused.labels("too_large").inc()
            self.usage.note(tenant, model, Use(refused=1))
            message = f"The prompt has {prompt_tokens} tokens; the limit is {rates.tokens_per_min} tokens per minute."
            raise GatewayError(400, message, code="prompt_too_long") from None
        if not answers:
            return Admission(tenant, model, 0, lease, self, spell_rate_limits(lease.status))
        is_in = False
        came_s = self.clock()
        try:
            cost = prompt_tokens + output_tokens
            await self.queues.of(model).enter(tenant, RANKS[rules.priority], cost, answers)
            is_in = True
        except Overloaded:
            raise self._shed(tenant, model, rules, "overloaded") from None
        finally:
            if not is_in:
                lease.settle(0)
        waited_s = self.clock() - came_s
        return Admission(tenant, model, answers, lease, self, spell_rate_limits(lease.status), waited_s)

    def _shed(self, tenant: str, model: str, rules: Rules, reason: str) -> GatewayError:
        self.metrics.refused.labels(reason).inc()
        use = use_of_slo(rules.slo.judge_failure())
        use.add(Use(refused=1))
        self.usage.note(tenant, model, use)
        return overloaded()

    def _refuse(self, error: LimitReached, rates: Rates, tenant: str, model: str) -> GatewayError:
        self.metrics.refused.labels(error.refused_by).inc()
        self.usage.note(tenant, model, Use(refused=1))
        limit = {
            "requests": rates.requests_per_min,
            "tokens": rates.tokens_per_min,
            "concurrent": rates.concurrent,
            "wan_bytes": rates.wan_bytes_per_min,
        }[error.refused_by]
        return GatewayError(
            429,
            MESSAGES[error.refused_by].format(limit),
            retry_after_s=error.retry_after_s,
            headers={name.decode(): value.decode() for name, value in spell_rate_limits(error.status)},
        )


def rates_of(rules: Rules) -> Rates:
    """Return what a tenant may use by its rules."""
    limits = rules.limits
    return Rates(limits.requests_per_min, limits.tokens_per_min, limits.concurrent, limits.wan_bytes_per_min)


def overloaded() -> GatewayError:
    """Return the error of a request for which there is no room in time."""
    message = "The gateway is at its limit; try again soon."
    return GatewayError(503, message, code="overloaded", retry_after_s=OVERLOADED_RETRY_S)


def spell_rate_limits(status: RateLimitStatus) -> RawHeaders:
    """Return the headers that OpenAI's clients read."""
    headers: RawHeaders = []
    for name, left in (("requests", status.requests), ("tokens", status.tokens)):
        if left is not None:
            headers += _spell_left(name, left)
    return headers


def _spell_left(name: str, left: Left) -> RawHeaders:
    values = {"limit": str(left.limit), "remaining": str(left.remaining), "reset": spell_duration(left.reset_s)}
    return [(f"x-ratelimit-{what}-{name}".encode(), value.encode()) for what, value in values.items()]


def spell_duration(duration_s: float) -> str:
    """Return a duration as OpenAI spells it: ``120ms``, ``7.5s``, ``6m0s``, ``1h0m0s``."""
    if duration_s < 1:
        return f"{math.ceil(duration_s * 1000)}ms"
    if duration_s < 60:
        return f"{math.ceil(duration_s * 1000) / 1000:g}s"
    minutes, seconds = divmod(math.ceil(duration_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{seconds}s" if hours else f"{minutes}m{seconds}s"
