"""One answer over real sockets: the relay course, failures in every phase, disconnects."""

import asyncio
from typing import Any

import pytest

from backends.types import Sampling
from gateway.errors import GatewayError
from gateway.relay.types import GenerationRequest, Tokens
from policies.eligibility import RequestFeatures
from tests.fakes.gates import HoldGate
from tests.fakes.script import Cut, Refuse, Script, eos_after
from tests.gateway.relay.stage import (
    MODEL,
    PROMPT,
    AnswerEvent,
    Collector,
    Stage,
    finish_of,
    ids_of,
    open_stage,
    read,
    roles_of,
    rules_of,
    unsplit,
)

ONE_SHOT = {"handoff": {"mode": "one_shot"}}
CATCH_UP = {"handoff": {"mode": "catch_up", "threshold_tokens": 2}}
SMALL = ("p1", "rld1", "md1")


async def _moved_after(stage: Stage, tokens: int, answer_ids: int = 40, **changes: Any) -> list[AnswerEvent]:
    """Read an answer whose KV arrives when RLD has sent ``tokens`` ids, and would not send more."""
    gate = HoldGate()
    for id_ in ("rld1", "rld2"):
        if id_ in stage.engines:
            stage.engines[id_].scripts.append(Script(holds={tokens: gate}))
    task = asyncio.create_task(read(stage.ask(max_tokens=answer_ids, **changes)))
    await gate.arrivals()
    transfer = await stage.path.opened()
    transfer.complete()
    return await task


@pytest.mark.parametrize("rules", [ONE_SHOT, CATCH_UP], ids=["one_shot", "catch_up"])
async def test_relay_speaks_p_then_rld_then_md(rules: dict[str, Any]) -> None:
    """The client gets the un-split ids: P's token, RLD's while the KV moves, MD's after the joint."""
    async with open_stage(rules, ids=SMALL) as stage:
        events = await _moved_after(stage, 8)
        assert ids_of(events) == unsplit()
        assert roles_of(events) == ["P", "RLD", "MD"]
        assert finish_of(events).completion_tokens == 40
        final = stage.engines["md1"].calls[-1]
        sealed = len(final.prompt) - len(PROMPT)
        assert final.body["max_tokens"] == 40 - sealed
        await stage.quiet()


async def test_direct_when_md_has_the_kv() -> None:
    """A prompt that MD has goes P -> MD, and no RLD is called."""
    async with open_stage(ids=SMALL, hits={"p1": 192, "rld1": 0, "md1": 192}) as stage:
        stage.path.is_instant = True
        answer = stage.ask()
        assert answer.plan_name == "direct" and answer.plan_reason == "nothing_to_move"
        events = await read(answer)
        assert ids_of(events) == unsplit() and roles_of(events) == ["P", "MD"]
        assert not stage.engines["rld1"].calls


async def test_unsplittable_comes_from_md_alone() -> None:
    """An unsplittable request is made by MD alone, P's token is not shown."""
    async with open_stage(ids=SMALL) as stage:
        stage.path.is_instant = True
        events = await read(stage.ask(features=RequestFeatures(presence_penalty=0.5)))
        assert ids_of(events) == unsplit() and roles_of(events) == ["MD"]


async def test_answer_that_rld_ends_brings_md_into_line() -> None:
    """RLD is done before the KV: the client is served, then the transfer completes and MD extends with the answer."""
    async with open_stage(ids=SMALL) as stage:
        events = await read(stage.ask(max_tokens=10))
        assert roles_of(events) == ["P", "RLD"] and finish_of(events).reason == "length"
        assert not stage.engines["md1"].calls
        transfer = await stage.path.opened()
        assert transfer.state == "running"
        assert transfer.priorities == ["relay", "later"]
        transfer.complete()
        call = await stage.engines["md1"].calls_made()
        assert call.prompt == PROMPT + unsplit(10) and call.body["max_tokens"] == 1
        await stage.quiet()


async def test_live_singular_stops_the_transfer() -> None:
    """RLD is done first and the singular rule fits: the transfer is stopped, MD is left alone."""
    rules = {"singular": {"min_uncached_tokens": 1, "max_hit": 1, "budget": 0.25}}
    async with open_stage(rules, ids=SMALL) as stage:
        rules_now = rules_of(stage)
        for _ in range(4):
            decision = stage.service.decide(GenerationRequest("earlier", MODEL, PROMPT, None), rules_now)
            stage.service.learning.note_decision(decision, rules_now)
        events = await read(stage.ask(max_tokens=None, sampling=Sampling(stop_token_ids=(unsplit()[5],))))
        assert roles_of(events) == ["P", "RLD"]
        assert stage.path.transfers[-1].state == "aborted"
        await stage.quiet()
        assert not stage.engines["md1"].calls


async def test_eos_ends_the_answer() -> None:
    """EOS from MD ends the answer with reason stop, and it counts as a token without text."""
    async with open_stage(ONE_SHOT, ids=SMALL) as stage:
        for engine in stage.engines.values():
            engine.model = eos_after(len(PROMPT) + 20)
        events = await _moved_after(stage, 8)
        finish = finish_of(events)
        assert ids_of(events)[-1] == 2 and finish.terminator and finish.reason == "stop"
        assert finish.completion_tokens == 21


@pytest.mark.parametrize("after", [None, 0, 1, 5], ids=lambda after: f"after_{after}")
async def test_dead_rld_is_replaced(after: int | None) -> None:
    """RLD breaks before or within its answer while the KV moves: another RLD goes on, no token lost or repeated."""
    async with open_stage() as stage:
        for id_ in ("rld1", "rld2"):
            stage.engines[id_].scripts.append(Script(fault=Cut(after)))
        events = await read(stage.ask())
        assert ids_of(events) == unsplit()
        await stage.path.opened()
        stage.path.transfers[-1].complete()
        await stage.quiet()


async def test_dead_rld_without_another_waits_for_the_kv() -> None:
    """The only RLD is gone: the answer goes on at MD as soon as the KV is there."""
    async with open_stage(ids=SMALL) as stage:
        stage.engines["rld1"].script = Script(fault=Cut(5))
        task = asyncio.create_task(read(stage.ask()))
        await stage.engines["rld1"].calls_made(1)
        transfer = await stage.path.opened()
        await stage.path.watch.until(lambda: "waiting" in transfer.priorities)
        transfer.complete()
        events = await task
        assert ids_of(events) == unsplit()


@pytest.mark.parametrize("after", [None, 0, 1, 7], ids=lambda after: f"after_{after}")
async def test_dead_md_is_replaced(after: int | None) -> None:
    """MD breaks at or after the joint: another MD goes on from the log."""
    async with open_stage(ONE_SHOT) as stage:
        for id_ in ("md1", "md2"):
            stage.engines[id_].scripts += [Script(), Script(fault=Cut(after))]
        events = await _moved_after(stage, 8)
        assert ids_of(events) == unsplit()


@pytest.mark.parametrize("after", [None, 0], ids=lambda after: f"after_{after}")
async def test_md_that_dies_while_it_is_warmed_costs_nobody_a_token(after: int | None) -> None:
    """MD breaks in its first extend, while it loads the KV: RLD was not stopped, and another MD is warmed."""
    async with open_stage(ONE_SHOT) as stage:
        for id_ in ("md1", "md2"):
            stage.engines[id_].scripts.append(Script(fault=Cut(after)))
        events = await _moved_after(stage, 8)
        assert ids_of(events) == unsplit() and roles_of(events) == ["P", "RLD", "MD"]
        calls = [call for id_ in ("md1", "md2") for call in stage.engines[id_].calls]
        assert [call.state for call in calls if call.body["max_tokens"] == 1].count("ended") == 1
        assert len(stage.engines["rld1"].calls + stage.engines["rld2"].calls) == 1


async def test_rld_is_not_stopped_before_md_has_its_kv() -> None:
    """One-shot, too: MD's first leg is one token that nobody sees, and RLD writes on while MD loads the KV for it."""
    async with open_stage(ONE_SHOT, ids=SMALL) as stage:
        loading, writing = HoldGate(), HoldGate()
        stage.engines["rld1"].scripts.append(Script(holds={8: writing}))
        stage.engines["md1"].scripts.append(Script(arrival=loading))
        answering = asyncio.create_task(read(stage.ask()))
        await writing.arrivals()
        stage.path.transfers[-1].complete()
        warm = await stage.engines["md1"].calls_made()
        assert warm.body["max_tokens"] == 1 and warm.prompt == PROMPT + unsplit(9)
        assert stage.engines["rld1"].running == 1
        loading.open()
        events = await answering
        assert ids_of(events) == unsplit() and roles_of(events) == ["P", "RLD", "MD"]
        assert [call.body["max_tokens"] for call in stage.engines["md1"].calls] == [1, 31]


async def test_dead_md_without_another_falls_back_to_rld() -> None:
    """The only MD is gone: RLD ends the answer."""
    async with open_stage(ONE_SHOT, ids=SMALL) as stage:
        stage.engines["md1"].scripts.append(Script())
        stage.engines["md1"].script = Script(fault=Cut(3))
        events = await _moved_after(stage, 8)
        assert ids_of(events) == unsplit()


async def test_broken_link_lets_rld_finish() -> None:
    """The transfer fails again and again: RLD ends the answer, and it is the un-split one."""
    async with open_stage(ids=SMALL) as stage:
        gate = HoldGate()
        stage.engines["rld1"].script = Script(holds={8: gate})
        task = asyncio.create_task(read(stage.ask()))
        await gate.arrivals()
        for count in (1, 2, 3):
            (await stage.path.opened(count)).fail()
        (await stage.path.opened(4)).complete()
        gate.open()
        events = await task
        assert ids_of(events) == unsplit()
        assert len({transfer.request.transfer_id for transfer in stage.path.transfers}) == 4


async def test_no_decode_instance_left_is_an_error() -> None:
    """With every decode instance dead the client gets an error, not silence."""
    rules = {"relay": {"transfer_retry_backoff_s": 0.001, "transfer_retry_backoff_max_s": 0.001, "max_attempts": 2}}
    async with open_stage(rules, ids=SMALL) as stage:
        for id_ in ("rld1", "md1"):
            stage.engines[id_].script = Script(fault=Cut(None))
        answer = stage.ask()
        task = asyncio.create_task(read(answer))
        await stage.engines["rld1"].calls_made()
        (await stage.path.opened()).complete()
        with pytest.raises(GatewayError) as caught:
            await task
        assert caught.value.status == 502
        await stage.quiet()


async def test_prefill_refusal_reaches_the_client() -> None:
    """STR-08: a 4xx of the first leg is the client's status, and nothing else is started."""
    async with open_stage() as stage:
        body = {"error": {"message": "temperature must be below 2", "param": "temperature"}}
        for id_ in ("p1", "p2"):
            stage.engines[id_].script = Script(fault=Refuse(400, body))
        with pytest.raises(GatewayError) as caught:
            await read(stage.ask())
        assert caught.value.status == 400 and caught.value.param == "temperature"
        await stage.quiet()
        assert not stage.engines["rld1"].calls and not stage.engines["rld2"].calls


async def test_dead_prefill_is_tried_elsewhere() -> None:
    """SPL-23: a P that breaks before its token is replaced by the other P, under a new leg id."""
    async with open_stage() as stage:
        for id_ in ("p1", "p2"):
            stage.engines[id_].scripts.append(Script(fault=Cut(None)))
            stage.engines[id_].scripts.append(Script())
        stage.path.is_instant = True
        stage.engines["p1"].scripts.popleft()
        events = await read(stage.ask())
        assert ids_of(events) == unsplit()


@pytest.mark.parametrize("phase", ["prefill", "eager", "catch_up", "main"])
async def test_client_that_leaves_ends_everything(phase: str) -> None:
    """STR-04, STR-05: whatever the phase, a client that leaves frees every engine and stops the transfer."""
    async with open_stage(CATCH_UP, ids=SMALL) as stage:
        gate = HoldGate()
        holder, script = {
            "prefill": ("p1", Script(arrival=gate)),
            "eager": ("rld1", Script(holds={5: gate})),
            "catch_up": ("md1", Script(arrival=gate)),
            "main": ("md1", Script(holds={5: gate})),
        }[phase]
        stage.engines[holder].script = script
        if phase in ("catch_up", "main"):
            stage.path.is_instant = True
        answer = stage.ask(max_tokens=4000)
        task = asyncio.create_task(read(answer))
        await gate.arrivals()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await stage.quiet()
        assert all(instance.in_flight == 0 for instance in stage.pools.instances)
        assert all(transfer.state in ("aborted", "complete") for transfer in stage.path.transfers)


async def test_stop_match_ends_the_answer_and_the_legs() -> None:
    """A stop string found in the text ends the answer at its token, whatever was on its way."""
    async with open_stage(ids=SMALL) as stage:
        answer = stage.ask(max_tokens=4000)
        seen = 0

        def stop(event: AnswerEvent) -> None:
            nonlocal seen
            if isinstance(event, Tokens):
                seen += len(event.ids)
                if seen == 12:
                    answer.stop_at(11)

        events = await read(answer, Collector(stop))
        finish = finish_of(events)
        assert finish.reason == "stop" and finish.completion_tokens == 11 and not finish.terminator
        stage.path.transfers[-1].complete()
        await stage.quiet()


async def test_timeline_tells_the_course() -> None:
    """The timeline has legs, joint and sums, and no ids or text."""
    async with open_stage(ONE_SHOT, ids=SMALL) as stage:
        await _moved_after(stage, 8)
        (timeline,) = stage.service.timelines.find("r1")
        shown = timeline.as_dict()
        assert shown["plan"] == "relay" and shown["outcome"] == "length"
        assert sum(shown["tokens"].values()) == 40
        assert {event["event"] for event in shown["events"]} >= {"leg_started", "first_token", "joint", "finished"}


async def test_a_conversation_stays_where_it_was() -> None:
    """Requests that name the same conversation go to the same instances, whatever the dice say."""
    rules = {"placement": {"prefill": {"session": 5}, "relay": {"session": 5}, "main": {"session": 5}}}
    async with open_stage(rules) as stage:
        stage.path.is_instant = True
        plans = set()
        for _ in range(6):
            await read(stage.ask(session="talk", max_tokens=3))
            timeline = stage.service.timelines.newest()
            assert timeline is not None
            plans.add(tuple(timeline.summary[role] for role in ("prefill", "relay", "main")))
            await stage.quiet()
        assert len(plans) == 1


@pytest.mark.parametrize("is_rld_lost", [False, True])
async def test_a_singular_answer_waits_for_kv_only_where_it_is_moved(is_rld_lost: bool) -> None:
    """RLD may write for as long as it likes; once it is lost the KV is moved, and MD waits so long for it."""
    rules: dict[str, Any] = {
        "singular": {"min_uncached_tokens": 1, "max_hit": 1, "budget": 0.25},
        "alignment": {"bound": 1},
    }
    rules |= {"relay": {"extend_timeout_s": 0.02, "keepalive_s": 0.1, "transfer_retry_backoff_s": 5}}
    async with open_stage(rules, ids=SMALL) as stage:
        rules_now = rules_of(stage)
        for _ in range(40):
            decision = stage.service.decide(GenerationRequest("earlier", MODEL, PROMPT, None), rules_now)
            stage.service.learning.note_decision(decision, rules_now)
        gate = HoldGate()
        stage.engines["rld1"].script = Script(holds={5: gate}, fault=Cut(8) if is_rld_lost else None)

        class Waiting(Collector):
            """Lets RLD go on after a silence that is longer than MD may wait for its KV."""

            def keep_alive(self) -> None:
                gate.open()

        answer = stage.ask(max_tokens=20)
        assert answer.plan_name == "singular"
        events = await read(answer, Waiting())
        assert ids_of(events) == unsplit(20)
        assert roles_of(events) == (["P", "RLD", "MD"] if is_rld_lost else ["P", "RLD"])
        assert [transfer.state for transfer in stage.path.transfers] == (["aborted"] if is_rld_lost else [])
        await stage.quiet()
