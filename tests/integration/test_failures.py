"""Kills, cuts and stalls in each phase of a live request: the client gets the exact answer all the same."""

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable

import pytest

from tests.integration.faults import cut_link, kill_bridge, watch_admission
from tests.integration.regions import (
    ANSWER_TOKENS,
    RELAYED,
    Regions,
    eventually,
    in_catch_up,
    in_eager,
    in_main,
    in_prefill,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="session")]

FREEZE_WORDS = 200
"""Their KV crosses before anybody notices that MD is not there."""

Fault = Callable[[Regions], Awaitable[None]]


def _instance(regions: Regions, role: str) -> str:
    """The instance of a role that the newest request uses."""
    timeline = regions.newest_timeline()
    kinds = {"relay": ("relay",), "main": ("extend", "final")}[role]
    used = [one["instance"] for one in timeline["events"] if one["event"] == "leg_started" and one["kind"] in kinds]
    name = used[-1] if used else timeline[role]
    assert name is not None, timeline
    return str(name)


async def kill_rld(regions: Regions) -> None:
    """End RLD without a word."""
    regions.cluster.children[_instance(regions, "relay")].kill()


async def kill_md(regions: Regions) -> None:
    """End MD without a word."""
    regions.cluster.children[_instance(regions, "main")].kill()


async def stall_link(regions: Regions) -> None:
    """Let nothing pass between the regions for a while; connections stand."""
    await regions.control_wan("stall", on=True)
    asyncio.get_running_loop().call_later(1.5, lambda: _heal_soon(regions))


_healing: set[asyncio.Task[None]] = set()


def _heal_soon(regions: Regions) -> None:
    task = asyncio.ensure_future(regions.control_wan("stall", on=False))
    _healing.add(task)
    task.add_done_callback(_healing.discard)


@pytest.mark.parametrize("phase", [in_prefill, in_eager, in_catch_up, in_main], ids=lambda phase: phase.__name__)
@pytest.mark.parametrize(
    "fault", [kill_rld, kill_md, kill_bridge, cut_link, stall_link], ids=lambda fault: fault.__name__
)
async def test_any_single_fault_leaves_the_answer_exact(whole: Regions, fault: Fault, phase: Fault) -> None:
    """RLD, MD, the bridge or the link fails in the phase: the ids are those of one engine, none lost or repeated."""
    is_admitted = watch_admission(whole)

    async def break_it() -> None:
        assert await eventually(is_admitted, 10)
        await phase(whole)
        await fault(whole)

    breaking = asyncio.create_task(break_it())
    async with whole.ask() as asked:
        await asked.read()
    await breaking
    assert asked.error is None and asked.done and asked.finish_reason == "length"
    assert asked.ids == await whole.alone(asked)


async def test_a_frozen_md_costs_the_client_seconds(whole: Regions) -> None:
    """SPL-46: MD takes the hand-off and says nothing: soon another one goes on, long before the limit of 30 s."""
    whole.use(RELAYED | {"handoff": {"mode": "one_shot"}})
    for instance in whole.gateway.pools.instances:
        instance.extend_tokens_per_s = 1000.0
    before = whole.newest_timeline().get("request_id")

    async def is_admitted() -> bool:
        return whole.newest_timeline().get("request_id") != before

    async def freeze() -> int:
        assert await eventually(is_admitted, 10)
        await in_eager(whole)
        pid = whole.cluster.children[_instance(whole, "main")].pid
        os.kill(pid, signal.SIGSTOP)
        return pid

    freezing = asyncio.create_task(freeze())
    try:
        async with whole.ask(words=FREEZE_WORDS) as asked:
            await asked.read()
    finally:
        os.kill(await freezing, signal.SIGCONT)
    assert asked.error is None and asked.done
    assert asked.ids == await whole.alone(asked)
    events = whole.newest_timeline()["events"]
    silent = next(one for one in events if one.get("outcome") == "EngineTimeout")
    started = next(one for one in events if one["event"] == "leg_started" and one["leg"] == silent["leg"])
    assert silent["t_s"] - started["t_s"] < 12


async def test_no_decode_instance_left_is_an_error_that_the_client_sees(whole: Regions) -> None:
    """With every RLD and MD dead in the middle of an answer the stream ends in an error event, not in silence."""
    async with whole.ask(tokens=2000) as asked:
        await asked.read(lambda so_far: len(so_far.ids) >= 5)
        for name in ("rld1", "rld2", "md1", "md2"):
            whole.cluster.children[name].kill()
        await asked.read()
    assert asked.error is not None and not asked.done
    assert asked.ids == (await whole.alone(asked))[: len(asked.ids)]


@pytest.mark.parametrize("phase", [in_prefill, in_eager, in_catch_up, in_main], ids=lambda phase: phase.__name__)
async def test_client_that_leaves_frees_everything_within_a_second(whole: Regions, phase: Fault) -> None:
    """The client goes in the phase: within 1 s no engine has the request, and no more KV crosses the link."""
    is_admitted = watch_admission(whole)

    async def read_on() -> None:
        async with whole.ask(words=2000, tokens=4000) as asked:
            await asked.read()

    reading = asyncio.create_task(read_on())
    assert await eventually(is_admitted, 10)
    await phase(whole)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    left_s = time.monotonic()
    assert await whole.engines_idle(1.0)

    async def is_quiet() -> bool:
        crossed = await whole.cluster.store_bytes()
        await asyncio.sleep(0.2)
        return await whole.cluster.store_bytes() - crossed < 4096

    assert await eventually(is_quiet, max(0.0, left_s + 1.0 - time.monotonic()) + 0.3)


async def test_answer_is_exact_without_faults(whole: Regions) -> None:
    """The plain relay gives one engine's ids, by all three roles."""
    async with whole.ask() as asked:
        await asked.read()
    assert asked.ids == await whole.alone(asked)
    assert len(asked.ids) == ANSWER_TOKENS and set(asked.roles) == {"P", "RLD", "MD"}
