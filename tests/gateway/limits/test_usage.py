"""Counts of use, over several processes and a real server."""

import os
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from prometheus_client import CollectorRegistry

from backends.transport.valkey import EmbeddedValkey
from gateway.limits.usage import HOUR_S, UsageMeter, Use, read_usage, use_of_slo
from gateway.redis.client import RedisClient, SharedRedis
from tests.gateway.fleet.seams import Clock
from tests.valkey import make_away, open_client

NOW_S = 1000.0 * HOUR_S


@asynccontextmanager
async def run_usage(url: str, clock: Clock | None = None, timeout_s: float = 5.0) -> AsyncGenerator[UsageMeter, None]:
    """Count in one process; its background task does not run."""
    async with SharedRedis(url) as shared:
        usage = UsageMeter(shared, CollectorRegistry(), clock=clock or Clock(NOW_S), timeout_s=timeout_s)
        try:
            yield usage
        finally:
            await usage.aclose()


@pytest.fixture
async def client(server: EmbeddedValkey) -> AsyncGenerator[RedisClient, None]:
    """Look into the server."""
    async with open_client(server.url) as opened:
        yield opened


pytestmark = pytest.mark.slow


async def test_processes_add_up_by_model_and_hour(server: EmbeddedValkey, client: RedisClient) -> None:
    """What two processes counted is one sum for each model, and hours are told apart."""
    clock = Clock(NOW_S)
    async with run_usage(server.url, clock) as one, run_usage(server.url, clock) as other:
        one.note("t", "m", Use(1, 100, 20, p_tokens=1, rld_tokens=5, wan_bytes=1 << 40, cost=0.25))
        one.note("t", "m", Use(md_tokens=7, slo_met=1))
        other.note("t", "m", Use(1, 50, cost=0.5, slo_met=1, slo_missed=1))
        other.note("t", "n:x", Use(1, 1))
        assert await one.flush() and await other.flush()
        clock.now_s += HOUR_S
        one.note("t", "m", Use(1, 3))
    first = await read_usage(client, "t", 1000, 1000)
    assert first["m"] == Use(2, 150, 20, 1, 5, 7, 0, 1 << 40, 0.75, 2, 1)
    assert first["n:x"] == Use(1, 1)
    assert (await read_usage(client, "t", 1000, 1001))["m"].requests == 3
    assert await read_usage(client, "t", 990, 999) == {}


async def test_tenants_are_apart_and_unnamed(server: EmbeddedValkey, client: RedisClient) -> None:
    """One tenant's use is no other's; tenants' names are not in Redis, and hours end by themselves."""
    async with run_usage(server.url) as usage:
        usage.note("acme", "m", Use(1))
        usage.note("other", "m", Use(2))
    assert (await read_usage(client, "acme", 1000, 1000))["m"].requests == 1
    keys = [key async for key in client.commands.scan_iter()]
    assert len(keys) == 2 and not any(b"acme" in key or b"other" in key for key in keys)
    assert all([await client.commands.ttl(key) > 89 * 86_400 for key in keys])


async def test_a_batch_that_is_sent_twice_counts_once(server: EmbeddedValkey, client: RedisClient) -> None:
    """When Redis does not answer in time the counts wait, and are not counted twice should it have heard them."""
    async with run_usage(server.url, timeout_s=0.2) as usage:
        usage.note("t", "m", Use(1))
        assert await usage.flush()
        os.kill(server.pid, signal.SIGSTOP)
        try:
            usage.note("t", "m", Use(1))
            assert not await usage.flush()
            usage.note("t", "m", Use(1))
            assert not await usage.flush()
        finally:
            os.kill(server.pid, signal.SIGCONT)
        while not await usage.flush():
            pass
    assert (await read_usage(client, "t", 1000, 1000))["m"].requests == 3


async def test_a_normal_end_loses_nothing(server: EmbeddedValkey, client: RedisClient) -> None:
    """What was counted in the last moment is in Redis when the process has ended, however many tenants there are."""
    async with run_usage(server.url) as usage:
        await usage.start()
        for number in range(600):
            usage.note(f"t{number}", "m", Use(1))
    assert await client.commands.dbsize() == 600


async def test_metrics_name_the_tenant() -> None:
    """The same counts are metrics, whether Redis answers or not."""
    registry = CollectorRegistry()
    usage = UsageMeter(make_away(), registry)
    await usage.start()
    usage.note("t", "m", Use(1, 10, 4, 1, 2, 3, 4, 5, 0.5))
    found = {
        name: registry.get_sample_value(f"pdd_tenant_{name}_total", {"tenant": "t"})
        for name in ("requests", "prompt_tokens", "cached_tokens", "completion_tokens", "wan_bytes", "cost")
    }
    assert list(found.values()) == [1, 10, 4, 10, 5, 0.5]
    for amounts in (use_of_slo(True), use_of_slo(True), use_of_slo(False), use_of_slo(None)):
        usage.note("t", "m", amounts)
    kept = [
        registry.get_sample_value("pdd_slo_requests_total", {"tenant": "t", "met": met}) for met in ("true", "false")
    ]
    assert kept == [2, 1]
    assert not await usage.flush()
    await usage.aclose()
