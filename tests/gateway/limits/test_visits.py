"""The look at a tenant's limits before its request is read, and the turns of those whose requests are read."""

import asyncio
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from gateway.errors import GatewayError
from gateway.limits.admission import PREPARED_AT_ONCE, SMALL_BYTES, AdmissionControl
from gateway.limits.queues import AdmissionQueue, AdmissionQueues
from gateway.limits.rate_limiter import RateLimiter
from gateway.limits.usage import UsageMeter, Use
from gateway.telemetry.metrics import Metrics
from policies.rules import Rules, parse_rules
from tests.gateway.limits.test_queues import settle
from tests.valkey import make_away


class Clock:
    """A time that tests set."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def make_gate(clock: Clock, registry: CollectorRegistry | None = None) -> AdmissionControl:
    """An admission without a Redis."""
    away = make_away()
    queues = AdmissionQueues(lambda model: None, 0, 1.0)
    meter = UsageMeter(away, registry or CollectorRegistry())
    return AdmissionControl(RateLimiter(away, lambda: 1, clock=clock), queues, meter, Metrics())


def limited(**limits: int) -> Rules:
    """Rules with limits."""
    return parse_rules({"limits": limits})


async def test_whose_requests_are_used_up_is_refused_unread_until_there_is_one_again() -> None:
    """A refusal is remembered for as long as it holds, by tenant and limits; each counts as one of the tenant's."""
    clock, registry = Clock(), CollectorRegistry()
    gate, rules = make_gate(clock, registry), limited(requests_per_min=1)
    with gate.visit("a", rules):
        (await gate.enter("a", rules, "m", 1, 1)).leave(Use(1), 1)
    with gate.visit("a", rules), pytest.raises(GatewayError):
        await gate.enter("a", rules, "m", 1, 1)
    clock.now_s += 59.9
    with pytest.raises(GatewayError) as refused, gate.visit("a", rules):
        pass
    assert (refused.value.status, round(refused.value.retry_after_s or 0, 6)) == (429, 0.1)
    with gate.visit("b", rules), gate.visit("a", limited(requests_per_min=2)):
        pass
    clock.now_s += 0.2
    with gate.visit("a", rules):
        (await gate.enter("a", rules, "m", 1, 1)).leave(Use(1), 1)
    assert registry.get_sample_value("pdd_tenant_refused_total", {"tenant": "a"}) == 2
    assert not gate.visitors


async def test_requests_that_are_being_read_hold_the_places_of_concurrent() -> None:
    """A tenant's request is refused unread while as many of it are in the process as may run at once."""
    gate, rules = make_gate(Clock()), limited(concurrent=2)
    with gate.visit("a", rules), gate.visit("a", rules):
        with pytest.raises(GatewayError) as refused, gate.visit("a", rules):
            pass
        assert (refused.value.status, refused.value.message) == (429, "Rate limit reached: 2 requests at once.")
        with gate.visit("b", rules):
            pass
    with gate.visit("a", rules):
        pass


async def test_tenants_take_turns_at_the_tokeniser() -> None:
    """A tenant with many large prompts waits for itself: the next turn is another tenant's."""
    gate, order, gates = make_gate(Clock()), list[str](), [asyncio.Event() for _ in range(8)]

    async def prepare(tenant: str, at: int) -> None:
        async with gate.turn(tenant, 1 << 20):
            order.append(tenant)
            await gates[at].wait()

    names = ["a"] * 6 + ["b", "b"]
    tasks = [asyncio.create_task(prepare(name, at)) for at, name in enumerate(names)]
    await settle()
    assert order == ["a"] * PREPARED_AT_ONCE
    async with gate.turn("c", SMALL_BYTES):
        pass
    for one in gates:
        one.set()
        await settle()
    await asyncio.gather(*tasks)
    assert "b" in order[2:4] and order[2:6].count("b") == 2


async def test_a_tokeniser_without_a_turn_in_time_is_overloaded() -> None:
    """Nobody waits for ever; who leaves while waiting takes no turn with it."""
    gate = replace(make_gate(Clock()), preparing=AdmissionQueue(lambda: 2, 10, 0.01))
    async with gate.turn("a", 1 << 20), gate.turn("a", 1 << 20):
        with pytest.raises(GatewayError) as refused:
            async with gate.turn("b", 1 << 20):
                pass
    assert refused.value.code == "overloaded"
    assert (gate.preparing.running, gate.preparing.waiting) == (0, 0)
