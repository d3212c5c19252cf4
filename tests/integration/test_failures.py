"""Kills, cuts and stalls in each phase of a live request: the client gets the exact answer all the same."""

import asyncio
import os
import signal
import time

import pytest

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
from tests.integration.regions import ANSWER_TOKENS, PROMPT_WORDS, RELAYED, Regions

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="session")]

FREEZE_WORDS = 200
"""Their KV crosses before anybody notices that MD is not there."""


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
async def test_any_single_fault_leaves_the_answer_exact(whole: Regions, fault: Fault, phase: Phase) -> None:
    """RLD, MD, the bridge or the link fails in the phase: the ids are those of one engine, none lost or repeated."""
    asked = await ask_and_break(whole, phase, fault, PROMPT_WORDS, ANSWER_TOKENS)
    assert asked.error is None and asked.done and asked.finish_reason == "length"
    assert asked.ids == await whole.alone(asked)


async def test_a_frozen_md_costs_the_client_seconds(whole: Regions) -> None:
    """SPL-46: MD takes the hand-off and says nothing: soon another one goes on, long before the limit of 30 s."""
    whole.use(RELAYED | {"handoff": {"mode": "one_shot"}})
    for instance in whole.gateway.pools.instances:
        instance.extend_tokens_per_s = 1000.0
    frozen: list[int] = []

    async def freeze(regions: Regions) -> None:
        frozen.append(regions.cluster.children[_instance(regions, "main")].pid)
        os.kill(frozen[0], signal.SIGSTOP)

    try:
        asked = await ask_and_break(whole, in_eager, freeze, FREEZE_WORDS, ANSWER_TOKENS)
    finally:
        for pid in frozen:
            os.kill(pid, signal.SIGCONT)
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
async def test_client_that_leaves_frees_everything_within_a_second(whole: Regions, phase: Phase) -> None:
    """The client goes in the phase: within 1 s no engine has the request, and no more KV crosses the link."""
    await leave_in(whole, phase, 2000, 4000)
    left_s = time.monotonic()
    assert await whole.engines_idle(1.0)
    assert await whole.link_quiet(max(0.0, left_s + 1.0 - time.monotonic()) + 0.3, 4096)


async def test_answer_is_exact_without_faults(whole: Regions) -> None:
    """The plain relay gives one engine's ids, by all three roles."""
    with whole.relay_kept_to(ANSWER_TOKENS // 2, of=ANSWER_TOKENS):
        async with whole.ask() as asked:
            await asked.read()
    assert asked.ids == await whole.alone(asked)
    assert len(asked.ids) == ANSWER_TOKENS and set(asked.roles) == {"P", "RLD", "MD"}
