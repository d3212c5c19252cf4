"""Clients that leave, engines and bridges that die, and a link that is cut, stalled or slow, under real vLLM."""

import asyncio
import time

import pytest

from tests.e2e.kit import ABORT_GRACE_S
from tests.integration.faults import (
    Fault,
    Phase,
    ask_and_break,
    cut_link,
    in_catch_up,
    in_eager,
    in_main,
    in_prefill,
    kill_bridge,
    leave_in,
)
from tests.integration.regions import Asked, Regions, eventually

pytestmark = [pytest.mark.slow, pytest.mark.e2e, pytest.mark.timeout(900), pytest.mark.asyncio(loop_scope="session")]

WORDS = 1600
ANSWER_TOKENS = 280
MAIN_TOKENS = 1000
"""Half of them take MD longer than it takes to kill it."""
LONG_ANSWER_TOKENS = 3000
IDLE_S = 3.0
QUIET_BYTES = 8192
QUIET_WITHIN_S = 2.0
"""Half of what the KV of the longest prompt takes to cross."""


async def _assert_exact(regions: Regions, asked: Asked, tokens: int = ANSWER_TOKENS) -> None:
    assert asked.error is None and asked.done and asked.finish_reason == "length"
    assert asked.ids == await regions.alone(asked, tokens)


@pytest.mark.parametrize("phase", [in_prefill, in_eager, in_catch_up, in_main], ids=lambda phase: phase.__name__)
async def test_client_that_leaves_frees_engines_and_link(whole: Regions, phase: Phase) -> None:
    """The client goes in the phase: KV stops crossing at once, and no engine goes on past its first token."""
    await leave_in(whole, phase, 3000, LONG_ANSWER_TOKENS)
    left_s = time.monotonic()
    assert await whole.link_quiet(QUIET_WITHIN_S, QUIET_BYTES)
    idle_s = IDLE_S + ABORT_GRACE_S
    assert await whole.engines_idle(max(0.0, left_s + idle_s - time.monotonic()))


async def stall_link(regions: Regions) -> None:
    """Let nothing pass between the regions for a while; connections stand."""
    await regions.control_wan("stall", on=True)
    await asyncio.sleep(1.5)
    await regions.control_wan("stall", on=False)


async def kill_md(regions: Regions) -> None:
    """End MD, all its processes, without a word."""
    regions.cluster.children["md1"].kill()


async def kill_rld(regions: Regions) -> None:
    """End RLD, all its processes, without a word."""
    regions.cluster.children["rld1"].kill()


@pytest.mark.parametrize("phase", [in_eager, in_main], ids=lambda phase: phase.__name__)
@pytest.mark.parametrize("fault", [cut_link, stall_link, kill_bridge], ids=lambda fault: fault.__name__)
async def test_faults_between_the_regions_leave_the_answer_exact(whole: Regions, fault: Fault, phase: Phase) -> None:
    """The link or the bridge fails in the phase: the ids are those of one engine, none lost or repeated."""
    asked = await ask_and_break(whole, phase, fault, WORDS, ANSWER_TOKENS)
    await _assert_exact(whole, asked)


async def test_slow_link_does_not_slow_the_relay(whole: Regions) -> None:
    """While the KV crosses at a tenth of the rate, RLD writes the whole answer, exactly."""
    async with whole.narrow_link(), whole.ask(words=WORDS, tokens=ANSWER_TOKENS) as asked:
        await asked.read()
    await _assert_exact(whole, asked)
    assert set(asked.roles) == {"P", "RLD"}


async def test_relay_that_dies_is_replaced(whole: Regions) -> None:
    """RLD is killed while it writes: MD takes over once the KV is there, exactly."""
    asked = await ask_and_break(whole, in_eager, kill_rld, WORDS, ANSWER_TOKENS)
    await _assert_exact(whole, asked)
    assert asked.roles[-1] == "MD"


async def test_main_that_dies_is_replaced(whole: Regions) -> None:
    """MD is killed while it writes: RLD goes on, exactly."""
    asked = await ask_and_break(whole, in_main, kill_md, WORDS, MAIN_TOKENS)
    await _assert_exact(whole, asked, MAIN_TOKENS)
    assert asked.roles[-1] == "RLD"


async def kill_p(regions: Regions) -> None:
    """End P, all its processes, without a word."""
    regions.cluster.children["p1"].kill()


async def test_prefill_that_dies_is_told_at_once(whole: Regions) -> None:
    """The only P is killed while it computes: the client gets a 503 that may be tried again, and no token."""
    asked = await ask_and_break(whole, in_prefill, kill_p, 3000, ANSWER_TOKENS)
    assert asked.response.status_code == 503 and not asked.ids
    assert float(asked.response.headers["retry-after"]) > 0


async def kill_cache(regions: Regions) -> None:
    """End the LMCache server of MD's region without a word."""
    regions.cluster.children["lmcache-b"].kill()


async def test_cache_server_that_dies_takes_md_out(whole: Regions) -> None:
    """MD's LMCache server is killed while RLD writes: MD is taken out until both are back, and no answer suffers."""
    asked = await ask_and_break(whole, in_eager, kill_cache, WORDS, ANSWER_TOKENS, main_follows=False)
    md = whole.gateway.pools["md1"]

    async def is_out() -> bool:
        return not md.reachable

    assert await eventually(is_out, 20)
    assert "LMCache" in md.last_error, md.last_error
    await _assert_exact(whole, asked)
    await whole.restart("lmcache-b")
    async with whole.ask(words=WORDS, tokens=ANSWER_TOKENS) as asked:
        await asked.read()
    await _assert_exact(whole, asked)
    await kill_md(whole)
    await whole.cluster.children["md1"].wait()
    await whole.healed()
    with whole.relay_kept_to(ANSWER_TOKENS // 2, of=ANSWER_TOKENS):
        async with whole.ask(words=WORDS, tokens=ANSWER_TOKENS) as asked:
            await asked.read()
    await _assert_exact(whole, asked)
    assert asked.roles[-1] == "MD"
