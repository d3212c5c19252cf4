"""Limits over several processes and a real server."""

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import redis.asyncio

from backends.transport.valkey import EmbeddedValkey
from gateway.limits.buckets import Lease, Left, LimitReached, RateLimitStatus, Rates, RequestTooLarge
from gateway.limits.rate_limiter import RateLimiter
from gateway.redis.client import SharedRedis
from tests.fakes.gates import Watch
from tests.gateway.fleet.seams import Clock
from tests.valkey import make_away

pytestmark = pytest.mark.slow
UNHURRIED_S = 5.0


class Process:
    """One gateway process's limits, and a way to wait for its exchanges with Redis."""

    def __init__(self, url: str, processes: int = 1, **times: Any) -> None:
        self.exchanges = Watch()
        self.clock = Clock()
        options = {"timeout_s": UNHURRIED_S, "interval_s": 0.02} | times
        self.exchange_count = 0
        self.redis = SharedRedis(url)
        self.gate = RateLimiter(self.redis, lambda: processes, clock=self.clock, on_exchange=self._note, **options)

    def _note(self) -> None:
        self.exchange_count += 1
        self.exchanges.changed()

    async def aclose(self) -> None:
        """End as a process does."""
        await self.gate.aclose()
        await self.redis.aclose()

    async def exchanged(self) -> None:
        """Wait for one more exchange with Redis."""
        before = self.exchange_count
        await self.exchanges.until(lambda: self.exchange_count > before)

    async def shared(self, is_so: bool = True) -> None:
        """Wait until the limits are held over all processes, or are not."""
        await self.exchanges.until(lambda: self.gate.is_local is not is_so)

    async def take(self, rates: Rates, tokens: int = 1, tenant: str = "t") -> Lease:
        """Be admitted."""
        return await self.gate.admit(tenant, rates, 1, tokens - 1)

    async def refusal(self, rates: Rates, tokens: int = 1) -> LimitReached:
        """Be refused."""
        with pytest.raises(LimitReached) as caught:
            await self.take(rates, tokens)
        return caught.value


@asynccontextmanager
async def run_processes(url: str, count: int, **times: Any) -> AsyncGenerator[list[Process], None]:
    """Run the limits of so many processes."""
    async with AsyncExitStack() as stack:
        processes = [Process(url, count, **times) for _ in range(count)]
        for process in processes:
            await process.gate.start()
            stack.push_async_callback(process.aclose)
        yield processes


@asynccontextmanager
async def open_client(server: EmbeddedValkey) -> AsyncGenerator[redis.asyncio.Redis, None]:
    """Look into the server."""
    async with redis.asyncio.Redis.from_url(server.url, decode_responses=True) as client:
        yield client


async def held(client: redis.asyncio.Redis) -> int:
    """Slots that are held in Redis."""
    return sum([await client.zcard(key) async for key in client.scan_iter("pdd:limits:*:slots")])


async def is_admitted(process: Process, rates: Rates) -> bool:
    """Ask once."""
    try:
        await process.take(rates)
    except LimitReached:
        return False
    return True


async def test_one_bucket_for_all_processes(server: EmbeddedValkey) -> None:
    """What one process lets pass is gone for the other, and the status is told with each admission."""
    rates = Rates(requests_per_min=2, tokens_per_min=1000)
    async with run_processes(server.url, 2) as (one, other):
        first = await one.take(rates, 400)
        assert first.status == RateLimitStatus(Left(2, 1, 30.0), Left(1000, 600, 24.0))
        second = await other.take(rates, 400)
        assert second.status.requests is not None and second.status.requests.remaining == 0
        refused = await one.refusal(rates)
        assert refused.refused_by == "requests" and 29 < refused.retry_after_s <= 30
        assert refused.status.tokens is not None and refused.status.tokens.remaining >= 200


async def test_true_use_is_settled(server: EmbeddedValkey) -> None:
    """Reserved tokens that an answer did not use are free at once for any process; those beyond are a debt."""
    rates = Rates(tokens_per_min=1000)
    async with run_processes(server.url, 2) as (one, other):
        lease = await one.take(rates, 1000)
        assert (await other.refusal(rates, 500)).refused_by == "tokens"
        lease.settle(100)
        lease.settle(100)
        await one.take(Rates(tokens_per_min=1000, concurrent=9), 800)
        over = await other.take(rates, 100)
        over.settle(700)
        refused = await other.refusal(rates, 1)
        assert 35 < refused.retry_after_s < 37


async def test_bytes_over_the_wan_are_one_bucket_for_all_processes(server: EmbeddedValkey) -> None:
    """What crossed for one process's answer keeps a tenant's next request out of every process until time has paid."""
    rates = Rates(wan_bytes_per_min=1000)
    async with run_processes(server.url, 2) as (one, other):
        one.gate.charge_wan("t", 10**6)
        lease = await one.take(rates)
        one.gate.charge_wan("t", 600)
        one.gate.charge_wan("t", 399)
        await one.exchanged()
        lease.settle(1)
        (await other.take(rates)).settle(1)
        one.gate.charge_wan("t", 1000)
        await one.exchanged()
        refused = await other.refusal(rates)
        assert refused.refused_by == "wan_bytes" and 59 < refused.retry_after_s <= 60.1
        await other.take(Rates(requests_per_min=5))
        await other.take(rates, tenant="u")


async def test_bytes_over_the_wan_are_counted_without_redis() -> None:
    """While Redis is away each process holds a tenant to its share of the bytes."""
    clock = Clock()
    alone = RateLimiter(make_away(), lambda: 2, clock=clock)
    rates = Rates(wan_bytes_per_min=1000)
    await alone.admit("t", rates, 1, 0)
    alone.charge_wan("t", 500)
    alone.charge_wan("u", 500)
    with pytest.raises(LimitReached) as caught:
        await alone.admit("t", rates, 1, 0)
    assert (caught.value.refused_by, caught.value.retry_after_s) == ("wan_bytes", 0.12)
    clock.now_s += 0.2
    await alone.admit("t", rates, 1, 0)


async def test_what_crossed_is_charged_once_however_long_redis_hangs(server: EmbeddedValkey) -> None:
    """Bytes whose charge is not answered are not charged again: a server that hung has done it."""
    rates = Rates(wan_bytes_per_min=1000)
    async with run_processes(server.url, 1, timeout_s=0.3, interval_s=0.1) as (one,):
        await one.take(rates)
        os.kill(server.pid, signal.SIGSTOP)
        try:
            one.gate.charge_wan("t", 2000)
            await one.shared(False)
        finally:
            os.kill(server.pid, signal.SIGCONT)
        await one.shared()
        assert 50 < (await one.refusal(rates)).retry_after_s <= 60.1


async def test_slots_are_freed_at_the_end(server: EmbeddedValkey) -> None:
    """Two answers at once hold both slots; the end of one lets the next in, on the other process too."""
    rates = Rates(concurrent=2)
    async with run_processes(server.url, 2) as (one, other):
        first, second = await one.take(rates), await other.take(rates)
        refused = await one.refusal(rates)
        assert (refused.refused_by, refused.retry_after_s) == ("concurrent", 1.0)
        first.settle(1)
        third = await one.take(rates)
        for lease in (second, third):
            lease.settle(1)
    async with open_client(server) as client:
        assert await held(client) == 0


async def test_prompt_over_a_minutes_tokens(server: EmbeddedValkey) -> None:
    """A prompt that could never pass is refused as such; a large answer limit alone takes a full bucket and passes."""
    rates = Rates(tokens_per_min=100)
    async with run_processes(server.url, 1) as (one,):
        with pytest.raises(RequestTooLarge):
            await one.gate.admit("t", rates, 101, 0)
        lease = await one.gate.admit("t", rates, 50, 100_000)
        assert lease.reserved_tokens == 100


@pytest.mark.parametrize("seed", range(5))
async def test_redis_and_a_process_count_alike(server: EmbeddedValkey, seed: int) -> None:
    """Over a random course, in a time in which next to nothing refills, both refuse the same for the same reason."""
    chance = random.Random(seed)
    rates = Rates(requests_per_min=chance.randint(3, 30), tokens_per_min=1000, concurrent=chance.randint(2, 6))
    alone = RateLimiter(make_away(), lambda: 1, clock=Clock())
    pairs: list[list[Lease]] = []
    async with run_processes(server.url, 1) as (one,):
        for _ in range(40):
            if pairs and chance.random() < 0.4:
                used = 100 * chance.randint(0, 5)
                for lease in pairs.pop(chance.randrange(len(pairs))):
                    lease.settle(used)
                continue
            tokens = 100 * chance.randint(1, 4)
            said = [await ask(gate, rates, tokens) for gate in (one.gate, alone)]
            assert str(said[0]) == str(said[1]) or all(isinstance(answer, Lease) for answer in said)
            if leases := [answer for answer in said if isinstance(answer, Lease)]:
                pairs.append(leases)


@pytest.mark.parametrize("passed_s", [0, 1, 15, 30, 59, 61, 600])
async def test_redis_and_a_process_refill_alike(server: EmbeddedValkey, passed_s: int) -> None:
    """After so much time, which is passed to both, all that is left, owed and waited for is the same."""
    rates = Rates(requests_per_min=60, tokens_per_min=6000, wan_bytes_per_min=600)
    clock = Clock()
    alone = RateLimiter(make_away(), lambda: 1, clock=clock)
    begin_s = time.monotonic()
    async with run_processes(server.url, 1) as (one,), open_client(server) as client:
        for gate in (one.gate, alone):
            for _ in range(50):
                (await gate.admit("t", rates, 100, 10)).settle(100)
            gate.charge_wan("t", 1000)
        await one.exchanged()
        (buckets,) = [key async for key in client.scan_iter("pdd:limits:*:buckets")]
        await client.hincrby(buckets, "at", -1000 * passed_s)
        clock.now_s += passed_s
        said = [await ask(gate, rates, 1) for gate in (one.gate, alone)]
        said += [await ask(gate, replace(rates, wan_bytes_per_min=None), 3000) for gate in (one.gate, alone)]
    spare_s = time.monotonic() - begin_s + 0.01  # what has passed for Redis beside
    for theirs, own in zip(said[::2], said[1::2], strict=True):
        assert getattr(theirs, "refused_by", None) == getattr(own, "refused_by", None)
        assert getattr(theirs, "retry_after_s", 0) == pytest.approx(getattr(own, "retry_after_s", 0), abs=spare_s)
        for shared, counted in (
            (theirs.status.requests, own.status.requests),
            (theirs.status.tokens, own.status.tokens),
        ):
            assert shared is not None and counted is not None
            assert shared.remaining == pytest.approx(counted.remaining, abs=counted.limit / 60 * spare_s + 1)
            assert shared.reset_s == pytest.approx(counted.reset_s, abs=spare_s)


async def ask(gate: RateLimiter, rates: Rates, tokens: int) -> Lease | LimitReached:
    """Ask once."""
    try:
        return await gate.admit("t", rates, 1, tokens - 1)
    except LimitReached as refusal:
        return refusal


async def test_without_limits_redis_is_not_asked(server: EmbeddedValkey) -> None:
    """A tenant without limits costs Redis nothing and leaves nothing there."""
    async with run_processes(server.url, 1) as (one,), open_client(server) as client:
        lease = await one.take(Rates(), 10**9)
        lease.settle(5)
        assert (lease.status, await client.dbsize(), one.gate.running("t")) == (RateLimitStatus(), 0, 0)


async def test_tenants_are_apart_and_unnamed(server: EmbeddedValkey) -> None:
    """TEN-09: tenants share no bucket, their names are not readable in Redis, and every key ends by itself."""
    async with run_processes(server.url, 1) as (one,), open_client(server) as client:
        for tenant in ("acme{1}", "other"):
            await one.take(Rates(requests_per_min=1), tenant=tenant)
        keys = [key async for key in client.scan_iter()]
        assert len(keys) == 4 and not any("acme" in key or "other" in key for key in keys)
        assert all([await client.pttl(key) > 0 for key in keys])


async def test_never_more_than_the_limit_under_load(server: EmbeddedValkey) -> None:
    """Many requests at once on two processes: no more pass than the bucket holds, and no more run than have slots."""
    rates = Rates(requests_per_min=60, concurrent=8)
    running = most = passed = 0

    async def ask(process: Process) -> None:
        nonlocal running, most, passed
        try:
            lease = await process.take(rates)
        except LimitReached:
            return
        passed += 1
        running += 1
        most = max(most, running)
        await process.exchanged()
        running -= 1
        lease.settle(1)

    async with run_processes(server.url, 2) as processes:
        for _ in range(20):
            await asyncio.gather(*(ask(random.choice(processes)) for _ in range(40)))
    assert most <= 8
    assert 60 <= passed <= 60 + 20


async def test_aborts_leave_no_slot(server: EmbeddedValkey) -> None:
    """TEN-07: after 500 aborts at random moments of an admission all slots are free again."""
    rates = Rates(concurrent=4)
    chance = random.Random(5)

    async def ask(process: Process) -> None:
        try:
            lease = await process.take(rates)
        except LimitReached:
            return
        try:
            await asyncio.sleep(0)
        finally:
            lease.settle(1)

    async with run_processes(server.url, 2) as processes, open_client(server) as client:
        for _ in range(50):
            tasks = [asyncio.create_task(ask(process)) for process in processes for _ in range(5)]
            for _ in range(chance.randrange(6)):
                await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for process in processes:
            await process.gate.aclose()
        assert await held(client) == 0
        assert [process.gate.running("t") for process in processes] == [0, 0]


async def test_a_killed_process_frees_its_slots(server: EmbeddedValkey) -> None:
    """TEN-07: leases that nobody renews end by themselves; those of a process that lives do not."""
    rates = Rates(concurrent=2)
    async with run_processes(server.url, 1, lease_s=0.5) as (living,):
        dead = Process(server.url, lease_s=0.5, interval_s=60.0)
        await dead.gate.start()
        await dead.take(rates)
        await living.take(rates)
        await living.refusal(rates)
        async with asyncio.timeout(10):
            while not await is_admitted(living, rates):
                await living.exchanged()
        await living.refusal(rates)
        await dead.aclose()


async def test_a_hung_redis_costs_one_short_wait(server: EmbeddedValkey) -> None:
    """RED-02, TEN-08: once Redis has not answered in time nobody waits, shares hold, and all is exact on its return."""
    rates = Rates(requests_per_min=6, concurrent=4)
    loop = asyncio.get_running_loop()
    async with run_processes(server.url, 2, timeout_s=0.3, interval_s=0.1) as (one, other):
        leases = [await one.take(rates)]
        os.kill(server.pid, signal.SIGSTOP)
        try:
            leases.append(await one.take(rates))
            assert one.gate.is_local
            before_s = loop.time()
            refused = await one.refusal(rates)
            assert loop.time() - before_s < 0.1
            assert (refused.refused_by, one.gate.running("t")) == ("concurrent", 2)
        finally:
            os.kill(server.pid, signal.SIGCONT)
        async with open_client(server) as client:
            while await held(client) != 2:
                await one.exchanged()
        await other.shared()
        leases += [await other.take(rates), await other.take(rates)]
        assert (await one.refusal(rates)).refused_by == "concurrent"
        for lease in leases:
            lease.settle(0)
        async with open_client(server) as client:
            while await held(client):
                await one.exchanged()


async def test_an_emptied_redis_learns_what_runs() -> None:
    """RED-01: after Redis was killed and came back empty, the answers that run hold their slots again."""
    rates = Rates(concurrent=3)
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(EmbeddedValkey())
        (one, other) = await stack.enter_async_context(run_processes(first.url, 2, interval_s=0.05))
        leases = [await one.take(rates), await one.take(rates)]
        await first.stop()
        await one.shared(False)
        await stack.enter_async_context(EmbeddedValkey(port=first.port))
        await one.shared()
        await one.exchanged()
        await other.shared()
        leases.append(await other.take(rates))
        await other.refusal(rates)
        for lease in leases:
            lease.settle(0)


async def test_scripts_that_are_gone_are_loaded_again(server: EmbeddedValkey) -> None:
    """When somebody flushes Redis's scripts, one request is counted here and the next ones in Redis again."""
    rates = Rates(requests_per_min=5)
    async with run_processes(server.url, 1) as (one,), open_client(server) as client:
        await client.script_flush()
        await one.take(rates)
        await one.shared()
        assert (await one.take(rates)).charged_in_redis


async def test_a_process_alone_is_exact() -> None:
    """While Redis is away a process that is the only one holds the whole limits."""
    gate = RateLimiter(make_away(), lambda: 1, clock=Clock())
    await gate.start()
    rates = Rates(concurrent=1, tokens_per_min=100)
    lease = await gate.admit("t", rates, 10, 20)
    with pytest.raises(LimitReached):
        await gate.admit("t", rates, 1, 1)
    lease.settle(5)
    again = await gate.admit("t", rates, 10, 10)
    assert again.status.tokens == Left(100, 75, 15.0)
    assert gate.is_local
    await gate.aclose()
