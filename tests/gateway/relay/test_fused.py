"""One answer over real sockets whose P writes on in RLD's place."""

import asyncio
from typing import Any

import pytest

from backends.types import EngineLoad
from tests.fakes.gates import HoldGate
from tests.fakes.script import Cut, Script
from tests.gateway.relay.stage import (
    MODEL,
    PROMPT,
    QUICK,
    AnswerEvent,
    Collector,
    LinkedPath,
    Stage,
    finish_of,
    ids_of,
    open_stage,
    read,
    roles_of,
    unsplit,
)

SMALL = ("p1", "rld1", "md1")
FUSED: dict[str, Any] = {"relay": QUICK | {"fused": "always"}}
AUTO: dict[str, Any] = {"relay": QUICK | {"fused": "auto", "fused_running_max": 2}}


async def _moved_after(stage: Stage, tokens: int) -> list[AnswerEvent]:
    """Read an answer whose KV arrives when P has sent ``tokens`` ids, and would not send more."""
    gate = HoldGate()
    for id_ in ("p1", "p2"):
        if id_ in stage.engines:
            stage.engines[id_].scripts.append(Script(holds={tokens: gate}, cached_tokens=32))
    answer = stage.ask()
    assert (answer.plan_name, answer.plan_reason) == ("relay", "fused")
    task = asyncio.create_task(read(answer))
    await gate.arrivals()
    (await stage.path.opened()).complete()
    return await task


@pytest.mark.parametrize("ids", [SMALL, ("p1", "md1")], ids=["with_rld", "without"])
async def test_p_writes_until_md_takes_over(ids: tuple[str, ...]) -> None:
    """One leg of P's makes all tokens until MD has the KV; no RLD is called, and none need be there."""
    async with open_stage(FUSED, ids=ids) as stage:
        events = await _moved_after(stage, 9)
        assert ids_of(events) == unsplit() and roles_of(events) == ["P", "MD"]
        (call,) = stage.engines["p1"].calls
        assert call.body["max_tokens"] == 40 and call.state == "aborted"
        assert [call.body["max_tokens"] for call in stage.engines["md1"].calls] == [1, 31]
        assert "rld1" not in ids or not stage.engines["rld1"].calls
        await stage.quiet()
        timeline = stage.service.timelines.newest()
        assert timeline is not None
        shown = timeline.as_dict()
        assert shown["fused"] is True and shown["tokens"] == {"P": 9, "RLD": 0, "MD": 31}


@pytest.mark.parametrize("after", [0, 1, 7], ids=lambda after: f"after_{after}")
async def test_a_dead_p_is_replaced(after: int) -> None:
    """P breaks before its token, at it or later: another P or an RLD goes on, and no id is lost or repeated."""
    async with open_stage(FUSED) as stage:
        for id_ in ("p1", "p2"):
            stage.engines[id_].scripts.append(Script(fault=Cut(after)))
        if after == 0:
            stage.engines["p2"].scripts.clear()
            stage.engines["p1"].script = Script(fault=Cut(0))
        gate = HoldGate()
        for id_ in ("rld1", "rld2"):
            stage.engines[id_].scripts.append(Script(holds={20: gate}))
        if after == 0:
            stage.path.is_instant = True
        answering = asyncio.create_task(read(stage.ask()))
        if after:
            await gate.arrivals()
            (await stage.path.opened()).complete()
        events = await answering
        assert ids_of(events) == unsplit()
        assert roles_of(events) == (["P", "RLD", "MD"] if after else ["P", "MD"])
        await stage.quiet()


async def test_a_dead_p_without_any_rld_is_followed_by_md() -> None:
    """Nobody can write on: the client waits for the KV, and MD goes on exactly."""
    async with open_stage(FUSED, ids=("p1", "md1")) as stage:
        stage.engines["p1"].script = Script(fault=Cut(5))
        answering = asyncio.create_task(read(stage.ask()))
        transfer = await stage.path.opened()
        await stage.path.watch.until(lambda: "waiting" in transfer.priorities)
        transfer.complete()
        events = await answering
        assert ids_of(events) == unsplit() and roles_of(events) == ["P", "MD"]


async def test_an_answer_that_p_ends_brings_md_into_line() -> None:
    """P is done before the KV has crossed: the client has its end with P's own usage, and MD is brought into line."""
    async with open_stage(FUSED, ids=SMALL) as stage:
        stage.engines["p1"].script = Script(cached_tokens=32)
        events = await read(stage.ask(max_tokens=10))
        assert roles_of(events) == ["P"] and finish_of(events).cached_tokens == 32
        (await stage.path.opened()).complete()
        call = await stage.engines["md1"].calls_made()
        assert call.prompt == PROMPT + unsplit(10) and call.body["max_tokens"] == 1
        await stage.quiet()


@pytest.mark.parametrize(("known", "told"), [({"p1": 48, "md1": 0}, 48), ({"p1": 4000, "md1": 0}, 200), ({}, None)])
async def test_cached_tokens_of_a_stopped_p_are_those_that_were_known(known: dict[str, int], told: int | None) -> None:
    """SPL-29: P tells what it found in its cache at its end; where it is stopped before, the index's word is given."""
    rules = FUSED | {"pipelines": ["relay"]}
    async with open_stage(rules, ids=SMALL, hits=known) as stage:
        assert finish_of(await _moved_after(stage, 9)).cached_tokens == told


async def test_a_p_that_gets_busy_is_left_to_rld() -> None:
    """More than twice as many requests as the bound run in P: RLD goes on from P's ids, and it is counted."""
    async with open_stage(AUTO, ids=SMALL) as stage:
        stage.engines["p1"].scripts.append(Script(holds={5: (busy := HoldGate())}))
        stage.engines["rld1"].scripts.append(Script(holds={20: (gate := HoldGate())}))
        answering = asyncio.create_task(read(stage.ask()))
        await busy.arrivals()
        stage.pools["p1"].load = EngineLoad(3, 2, 0.5)
        busy.open()
        await gate.arrivals()
        assert stage.engines["p1"].calls[0].state == "aborted"
        (await stage.path.opened()).complete()
        events = await answering
        assert ids_of(events) == unsplit() and roles_of(events) == ["P", "RLD", "MD"]
        left = stage.service.metrics.registry.get_sample_value("pdd_fused_left_total", {"model": MODEL})
        assert left == 1
        await stage.quiet()


async def test_a_busy_p_is_not_chosen_to_write_on() -> None:
    """With as many requests in P as the rule's bound the answer is a plain relay."""
    async with open_stage(AUTO, ids=SMALL) as stage:
        stage.pools["p1"].load = EngineLoad(2, 0, 0.5)
        answer = stage.ask()
        assert answer.plan_reason == "wan_slow"
        await answer.aclose()


async def test_kv_is_awaited_from_ps_first_token_on() -> None:
    """P's KV should be in its store soon after its first token, however long it writes on: else MD computes it."""
    rules = {"relay": QUICK | {"fused": "always", "kv_first_chunk_s": 0.05}}
    async with open_stage(rules, ids=SMALL, path=LinkedPath(has_chunks=False)) as stage:
        gate = HoldGate()
        stage.engines["p1"].scripts.append(Script(holds={3: gate}))
        answering = asyncio.create_task(read(stage.ask(), Collector()))
        await gate.arrivals()
        warm = await stage.engines["md1"].calls_made()
        assert warm.prompt == PROMPT + unsplit(3)
        events = await answering
        assert ids_of(events) == unsplit() and roles_of(events) == ["P", "MD"]
        await stage.quiet()


async def test_a_client_that_leaves_stops_p() -> None:
    """STR-04: nothing runs for nobody."""
    async with open_stage(FUSED, ids=SMALL) as stage:
        gate = HoldGate()
        stage.engines["p1"].script = Script(holds={5: gate})
        task = asyncio.create_task(read(stage.ask(max_tokens=4000)))
        await gate.arrivals()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await stage.quiet()
        assert all(instance.in_flight == 0 for instance in stage.pools.instances)
