"""The ledger of several processes over a real server."""

import os
import signal
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import redis.asyncio
from pytest import approx

from backends.transport.valkey import EmbeddedValkey
from gateway.fleet.learning import Learning
from gateway.fleet.ledger import Ledger
from gateway.redis.client import SharedRedis
from policies.types import Alignment, Hit
from tests.fakes.gates import Watch
from tests.gateway.fleet.seams import Clock
from tests.gateway.fleet.test_learning import QUICK, WINDOW_S, warm_at_p
from tests.policies.build import MODEL, decide, facts

pytestmark = pytest.mark.slow


@dataclass(slots=True)
class Process:
    """The learning part of one gateway process, with a clock of its own."""

    clock: Clock
    learning: Learning
    ledger: Ledger
    exchanges: Watch

    def serve(self, tokens: int = 64, tenant: str = "t") -> None:
        """Decide a request whose P had half of 20,000 tokens, and end its answer."""
        self.learning.note_decision(warm_at_p(), QUICK)
        self.learning.note_length(MODEL, tenant, tokens, QUICK)

    def expected(self, tenant: str = "t") -> int | None:
        """Length to expect of the tenant's answers."""
        return self.learning.expected_output(MODEL, tenant, None, None, QUICK)

    @property
    def prompt_tokens(self) -> float:
        """Prompt tokens that the alignment was learnt from."""
        return self.learning.alignment(MODEL).prompt_tokens

    async def until(self, *, prompt_tokens: int = 0, up: bool = True) -> None:
        """Wait for an exchange after which that many prompt tokens are known, and Redis is as said."""
        await self.exchanges.until(lambda: self.prompt_tokens >= 0.99 * prompt_tokens and self.ledger.up is up)


@asynccontextmanager
async def run_process(url: str, now_s: float = 0.0, **times: Any) -> AsyncGenerator[Process, None]:
    """Be one process; its ledger is not started."""
    clock, exchanges = Clock(now_s), Watch()
    learning = Learning(clock)
    async with SharedRedis(url) as shared:
        ledger = Ledger(shared, learning, [MODEL], on_exchange=exchanges.changed, **times)
        try:
            yield Process(clock, learning, ledger, exchanges)
        finally:
            await ledger.aclose()


@asynccontextmanager
async def run_pair(url: str, **times: Any) -> AsyncGenerator[tuple[Process, Process], None]:
    """Be two processes whose monotonic clocks have nothing to do with each other."""
    async with run_process(url, 5.0, **times) as one, run_process(url, 900_000.0, **times) as other:
        yield one, other


async def test_two_processes_learn_together(server: EmbeddedValkey) -> None:
    """Hit rates and lengths of two running ledgers become those of all requests, each counted once."""
    async with run_pair(server.url, interval_s=0.02) as (one, other):
        for process in (one, other):
            await process.ledger.start()
        one.serve()
        one.serve()
        other.learning.note_decision(decide(facts(20_000, {"p1": Hit(0), "m1": Hit(0)})), QUICK)
        assert other.expected() is None
        for process in (one, other):
            await process.until(prompt_tokens=60_000)
            assert process.learning.alignment(MODEL).gap == approx(1 / 3, rel=0.01)
        await other.exchanges.until(lambda: other.expected() is not None)
        assert other.learning.lengths(MODEL, "t").samples == 2
        assert (one.ledger.up, one.ledger.peers, other.ledger.peers) == (True, 1, 1)


async def test_exchanging_again_counts_nothing_twice(server: EmbeddedValkey) -> None:
    """Exchanges without news leave everything as it is."""
    async with run_pair(server.url) as (one, other):
        one.serve()
        for _ in range(3):
            assert await one.ledger.exchange() and await other.ledger.exchange()
        for process in (one, other):
            assert process.prompt_tokens == approx(20_000, rel=0.01)
        assert one.learning.lengths(MODEL, "t").samples == 1


async def test_a_late_process_is_warm(server: EmbeddedValkey) -> None:
    """A process that starts after the others have ended knows what they have learnt after two exchanges at most."""
    async with run_process(server.url) as one:
        await one.ledger.exchange()
        one.serve()
    async with run_process(server.url) as late:
        assert late.expected() is None
        await late.ledger.exchange()
        assert late.expected() in range(64, 80)
        assert late.learning.alignment(MODEL).gap == approx(0.5)
        assert late.ledger.peers == 0


async def test_tenants_and_models_are_kept_apart(server: EmbeddedValkey) -> None:
    """Nothing of a tenant shows with another one, and no name is readable in Redis."""
    async with run_process(server.url) as one, redis.asyncio.Redis.from_url(server.url) as client:
        one.serve(tenant="tenant{x}")
        one.serve(tokens=500, tenant="other")
        await one.ledger.exchange()
        async with run_process(server.url) as late:
            late.expected("tenant{x}")
            await late.ledger.exchange()
            assert late.expected("tenant{x}") in range(64, 80)
            assert late.expected("other") is None
        keys = [key.decode() async for key in client.scan_iter()]
        assert len(keys) == 4 and all(key.startswith("pdd:ledger:") for key in keys)
        assert not any("tenant" in key or "other" in key for key in keys)
        assert all([await client.pttl(key) > 0 for key in keys])


async def test_asking_leaves_nothing_in_redis(server: EmbeddedValkey) -> None:
    """Tenants that only ask, and models without requests, make no keys."""
    async with run_process(server.url) as one, redis.asyncio.Redis.from_url(server.url) as client:
        for number in range(10):
            one.expected(str(number))
        await one.ledger.exchange()
        assert [key async for key in client.scan_iter()] == [b"pdd:ledger:processes"]


async def test_many_tenants_go_in_turns(server: EmbeddedValkey) -> None:
    """One exchange carries a bounded number of tenants; the next one carries the rest."""
    async with run_process(server.url) as one, redis.asyncio.Redis.from_url(server.url) as client:
        for number in range(300):
            one.serve(tenant=str(number))
        await one.ledger.exchange()
        assert await client.dbsize() == 2 + 256
        await one.ledger.exchange()
        assert await client.dbsize() == 2 + 300


async def test_flush_heals(server: EmbeddedValkey) -> None:
    """When Redis has lost everything, the next exchange puts back what was known, once."""
    async with run_pair(server.url) as (one, other), redis.asyncio.Redis.from_url(server.url) as client:
        one.serve()
        other.serve()
        for process in (one, other, one):
            process.expected()
            await process.ledger.exchange()
        await client.flushall()
        other.serve()
        for process in (one, other, one, other):
            process.expected()
            assert await process.ledger.exchange()
        for process in (one, other):
            assert process.prompt_tokens == approx(60_000, rel=0.01)
            assert process.learning.lengths(MODEL, "t").samples == 3


async def test_garbage_is_replaced(server: EmbeddedValkey) -> None:
    """States that cannot be read, or have another size, are replaced by what is known."""
    async with run_process(server.url) as one, redis.asyncio.Redis.from_url(server.url) as client:
        one.serve()
        await one.ledger.exchange()
        for garbage in (b"", b"\xc1", b"\x93\x01\x02\x03", b"\x2a"):
            for key in [key async for key in client.scan_iter() if not key.endswith(b"processes")]:
                await client.set(key, garbage)
            one.expected()
            assert await one.ledger.exchange()
            assert one.learning.lengths(MODEL, "t").samples == 1
            assert one.learning.alignment(MODEL).gap == approx(0.5)


async def test_redis_restart_heals() -> None:
    """RED-02: with Redis away at the start and again later the process goes on alone, then shares all it has seen."""
    async with EmbeddedValkey() as probe:
        port = probe.port
    async with AsyncExitStack() as stack:
        one, other = await stack.enter_async_context(run_pair(f"redis://127.0.0.1:{port}", interval_s=0.02))
        for process in (one, other):
            await process.ledger.start()
        one.serve()
        await one.until(up=False)
        assert one.expected() in range(64, 80)
        async with EmbeddedValkey(port=port):
            await other.until(prompt_tokens=20_000)
        for process in (one, other):
            await process.until(up=False)
            process.serve()
        async with EmbeddedValkey(port=port):
            for process in (one, other):
                await process.until(prompt_tokens=60_000)
                assert process.prompt_tokens < 60_001


async def test_a_hung_redis_costs_nothing_but_news(server: EmbeddedValkey, caplog: pytest.LogCaptureFixture) -> None:
    """RED-02, RED-03: while Redis takes connections and never answers, exchanges end in time and lose nothing."""
    async with run_pair(server.url, timeout_s=0.2) as (one, other):
        assert await one.ledger.exchange()
        os.kill(server.pid, signal.SIGSTOP)
        try:
            one.serve()
            assert not await one.ledger.exchange()
            assert not one.ledger.up
            assert any(line.startswith("Redis does not answer (ledger): no answer in time") for line in caplog.messages)
            assert one.expected() in range(64, 80)
        finally:
            os.kill(server.pid, signal.SIGCONT)
        assert await one.ledger.exchange()
        assert await other.ledger.exchange()
        assert other.prompt_tokens == approx(20_000, rel=0.01)


async def test_a_full_redis_is_as_good_as_away(server: EmbeddedValkey) -> None:
    """When Redis refuses writes for lack of memory, the process goes on alone and tells its news later."""
    async with run_process(server.url) as one, redis.asyncio.Redis.from_url(server.url) as client:
        one.serve()
        await client.config_set("maxmemory", 1)
        assert not await one.ledger.exchange()
        assert one.learning.alignment(MODEL) == Alignment(20_000, 10_000, 0, 0)
        await client.config_set("maxmemory", 0)
        assert await one.ledger.exchange()
        assert one.learning.alignment(MODEL).gap == approx(0.5)


async def test_hits_fade_with_redis_time(server: EmbeddedValkey) -> None:
    """What was shared fades by Redis's clock, also over a time in which no process ran."""
    async with run_process(server.url) as one, redis.asyncio.Redis.from_url(server.url) as client:
        one.serve()
        await one.ledger.exchange()
        (key,) = [key async for key in client.scan_iter("*:hits")]
        await client.eval(_AGE, 1, key, WINDOW_S)
    async with run_process(server.url) as late:
        await late.ledger.exchange()
        assert late.prompt_tokens == approx(20_000 * 0.36788, rel=0.01)


async def test_dead_processes_are_no_peers(server: EmbeddedValkey) -> None:
    """A process that ends is no peer any more, and one that vanished stops being one when its time is over."""
    async with run_process(server.url, interval_s=0.0, timeout_s=2.0) as one:
        async with run_process(server.url) as other:
            await other.ledger.exchange()
            await one.ledger.exchange()
            assert one.ledger.peers == 1
        await one.ledger.exchange()
        assert one.ledger.peers == 0
        async with redis.asyncio.Redis.from_url(server.url) as client:
            await client.zadd("pdd:ledger:processes", {"vanished": 1.0})
        await one.ledger.exchange()
        assert one.ledger.peers == 0


_AGE = """
local state = cmsgpack.unpack(redis.call('GET', KEYS[1]))
state[1] = state[1] - ARGV[1]
redis.call('SET', KEYS[1], cmsgpack.pack(state))
"""
