"""Answers at their edges: a first token that is the last, a full context, engines that are silent, refuse or break."""

import asyncio
from typing import Any

import pytest

from backends.base import Take
from backends.engines.vllm import VllmEngine
from backends.types import LegChunk, LegRequest, Sampling
from gateway.errors import GatewayError
from gateway.relay import legs
from gateway.relay.types import GenerationRequest
from policies.eligibility import RequestFeatures
from tests.fakes.gates import HoldGate
from tests.fakes.script import EOS, Cut, LoseIds, Refuse, Script, Verbatim, continuation, eos_after
from tests.gateway.relay.stage import (
    MODEL,
    PROMPT,
    QUICK,
    AnswerEvent,
    Collector,
    finish_of,
    ids_of,
    open_stage,
    read,
    roles_of,
    unsplit,
)

SMALL = ("p1", "rld1", "md1")
CONTEXT_TOKENS = 8192
REFUSAL = Refuse(400, {"error": {"message": "logit_bias is odd", "param": "logit_bias"}})


@pytest.mark.parametrize("by", ["eos", "stop_token"])
async def test_the_first_token_may_end_the_answer(by: str) -> None:
    """SPL-16: EOS or the client's stop token from P is the whole answer: nobody decodes, and no more KV crosses."""
    async with open_stage(ids=SMALL) as stage:
        changes: dict[str, Any] = {}
        if by == "eos":
            stage.engines["p1"].model = eos_after(len(PROMPT))
        else:
            changes["sampling"] = Sampling(stop_token_ids=(unsplit(1)[0],))
        events = await read(stage.ask(**changes))
        finish = finish_of(events)
        assert ids_of(events) == [EOS if by == "eos" else unsplit(1)[0]]
        assert (finish.reason, finish.terminator, finish.completion_tokens) == ("stop", True, 1)
        await stage.quiet()
        assert not stage.engines["rld1"].calls and not stage.engines["md1"].calls
        assert {transfer.state for transfer in stage.path.transfers} == {"aborted"}


async def test_the_first_tokens_usage_comes_after_it() -> None:
    """SPL-16, SPL-29: where P's token ends the answer, its Finish waits for what P says of its cache after that."""
    async with open_stage(ids=SMALL) as stage:
        gate = HoldGate()
        stage.engines["p1"].model = eos_after(len(PROMPT))
        stage.engines["p1"].script = Script(end=gate, cached_tokens=48)
        given = HoldGate()
        reading = asyncio.create_task(read(stage.ask(), Collector(lambda event: given.release())))
        await gate.arrivals()
        await given.hold()
        gate.open()
        assert finish_of(await reading).cached_tokens == 48


@pytest.mark.parametrize("dies", [False, True])
async def test_nobody_waits_for_a_p_that_says_no_more(monkeypatch: pytest.MonkeyPatch, dies: bool) -> None:
    """A P that hangs or breaks after the answer's last token delays the answer's end no longer than a drain."""
    monkeypatch.setattr(legs, "DRAIN_S", 0.05)
    async with open_stage(ids=SMALL) as stage:
        choice = b'{"index": 0, "text": "", "token_ids": [2], "finish_reason": "stop", "stop_reason": null}'
        chunk = b'data: {"id": "x", "created": 1, "model": "demo", "choices": [%s]}\n\n' % choice
        stage.engines["p1"].model = eos_after(len(PROMPT))
        stage.engines["p1"].script = Script(fault=Verbatim((chunk,), cut=True)) if dies else Script(end=HoldGate())
        events = await read(stage.ask())
        assert ids_of(events) == [EOS] and finish_of(events).cached_tokens is None
        await stage.quiet()
        assert stage.pools["p1"].in_flight == 0 and len(stage.engines["p1"].calls) == 1


@pytest.mark.parametrize("room", [1, 2, 12])
async def test_the_context_is_never_left(room: int) -> None:
    """SPL-17: without a limit of the client's the context's end is the answer's, and no leg asks for more than fits."""
    async with open_stage({"handoff": {"mode": "one_shot"}}, ids=SMALL) as stage:
        stage.path.is_instant = True
        prompt = [100 + token % 800 for token in range(CONTEXT_TOKENS - room)]
        events = await read(stage.service.generate(GenerationRequest("full", MODEL, prompt, None)))
        assert ids_of(events) == continuation(prompt, room)
        assert finish_of(events).reason == "length"
        await stage.quiet()
        calls = [call for engine in stage.engines.values() for call in engine.calls]
        assert all(len(call.prompt) + call.body["max_tokens"] <= CONTEXT_TOKENS for call in calls)
        assert {call.state for call in calls} <= {"ended", "aborted"}


async def test_no_room_at_all_is_refused() -> None:
    """SPL-17: a prompt that fills the context starts no leg."""
    async with open_stage(ids=SMALL) as stage:
        with pytest.raises(GatewayError) as caught:
            stage.service.generate(GenerationRequest("full", MODEL, [100] * CONTEXT_TOKENS, None))
        assert (caught.value.status, caught.value.code) == (400, "context_length_exceeded")
        assert not stage.engines["p1"].calls


async def test_cached_tokens_are_those_of_prefill() -> None:
    """SPL-29: what P found in its cache is told, not what the decode engines got from it."""
    async with open_stage({"handoff": {"mode": "one_shot"}}, ids=SMALL) as stage:
        stage.path.is_instant = True
        for id_, cached in (("p1", 48), ("rld1", 192), ("md1", 208)):
            stage.engines[id_].script = Script(cached_tokens=cached)
        events = await read(stage.ask())
        assert roles_of(events)[-1] == "MD" and finish_of(events).cached_tokens == 48


@pytest.mark.parametrize("mode", ["one_shot", "catch_up"])
async def test_a_silent_md_does_not_stop_the_answer(mode: str) -> None:
    """SPL-46: MD takes the extend and says nothing; its patience over, RLD ends the answer, sealed or not."""
    rules = {"relay": {"extend_timeout_s": 0.1, "transfer_retry_backoff_s": 5}, "handoff": {"mode": mode}}
    async with open_stage(rules, ids=SMALL) as stage:
        gate = HoldGate()
        stage.engines["rld1"].scripts.append(Script(holds={8: gate}))
        stage.engines["md1"].script = Script(arrival=HoldGate())
        stage.path.is_instant = True
        answering = asyncio.create_task(read(stage.ask()))
        await stage.engines["md1"].calls_made()
        await stage.engines["md1"].idle()
        gate.open()
        assert ids_of(await answering) == unsplit()
        assert stage.engines["md1"].calls[0].state == "aborted"


async def test_a_silent_md_is_given_up_after_what_was_expected_of_it() -> None:
    """SPL-46: after a one-shot hand-off a measured MD's silence ends long before the limit, and RLD goes on.

    When MD is tried again it extends while RLD writes, and gets the rest once it has answered.
    """
    rules = {
        "relay": QUICK | {"extend_timeout_s": 600, "extend_floor_s": 0.05, "max_attempts": 2},
        "handoff": {"mode": "one_shot"},
    }
    async with open_stage(rules, ids=SMALL) as stage:
        first, second, silence, extend = HoldGate(), HoldGate(), HoldGate(), HoldGate()
        stage.engines["rld1"].scripts += [Script(holds={8: first}), Script(holds={8: second})]
        stage.engines["md1"].scripts += [Script(), Script(arrival=silence), Script(arrival=extend)]
        main = stage.pools["md1"]
        main.extend_tokens_per_s = 1e6
        answering = asyncio.create_task(read(stage.ask()))
        await first.arrivals()
        stage.path.transfers[-1].complete()
        silent = await stage.engines["md1"].calls_made(2)
        await stage.engines["md1"].idle()
        assert silent.state == "aborted" and main.failures == 1
        extending = await stage.engines["md1"].calls_made(3)
        assert extending.body["max_tokens"] == 1
        await second.arrivals()
        assert stage.engines["rld1"].running == 1
        extend.open()
        second.open()
        events = await answering
        assert ids_of(events) == unsplit() and roles_of(events)[-1] == "MD"
        assert stage.engines["rld1"].calls[0].state == "aborted"
        assert not main.failures and main.extending_tokens == 0


async def test_a_refused_extend_lets_rld_end_the_answer() -> None:
    """SPL-25: MD refuses the hand-off as a bad request: the client, which has tokens, gets the rest from RLD."""
    async with open_stage({"relay": {"transfer_retry_backoff_s": 5}}, ids=SMALL) as stage:
        gate = HoldGate()
        stage.engines["rld1"].scripts.append(Script(holds={8: gate}))
        stage.engines["md1"].script = Script(fault=REFUSAL)
        stage.path.is_instant = True
        answering = asyncio.create_task(read(stage.ask()))
        await stage.engines["md1"].calls_made()
        gate.open()
        assert ids_of(await answering) == unsplit()
        await stage.quiet()


@pytest.mark.parametrize("id_", ["rld1", "md1"])
async def test_a_hole_in_the_ids_is_never_continued(id_: str) -> None:
    """SPL-07: RLD or MD loses an id: nothing behind the hole is shown or handed over, and the answer goes on exactly.

    The leg counts as one that lost ids, and policies know the engine by it.
    """
    async with open_stage({"handoff": {"mode": "one_shot"}}, ids=SMALL) as stage:
        gate = HoldGate()
        lossy = Script(chunks=(3,), fault=LoseIds(frozenset({10})))
        if id_ == "md1":
            stage.engines[id_].scripts.append(Script())
        stage.engines[id_].scripts.append(lossy)
        if id_ == "md1":
            stage.engines["rld1"].scripts.append(Script(holds={8: gate}))
        answering = asyncio.create_task(read(stage.ask()))
        if id_ == "md1":
            await gate.arrivals()
        else:
            await stage.engines["rld1"].calls_made(2)
        stage.path.transfers[-1].complete()
        assert ids_of(await answering) == unsplit()
        metrics = stage.service.metrics.exposition().decode()
        assert 'outcome="IdsMissing"' in metrics
        assert [one.spec.id for one in stage.pools.instances if not one.view(0.0).streams_ids] == [id_]


async def test_a_decode_refusal_is_the_clients_status() -> None:
    """STR-08: where MD makes the whole answer and refuses it, the client gets MD's 4xx and no empty answer."""
    async with open_stage(ids=SMALL) as stage:
        stage.path.is_instant = True
        stage.engines["md1"].script = Script(fault=REFUSAL)
        with pytest.raises(GatewayError) as caught:
            await read(stage.ask(features=RequestFeatures(structured_output=True)))
        assert (caught.value.status, caught.value.param) == (400, "logit_bias")


async def test_failures_are_remembered_from_one_request_to_the_next() -> None:
    """SPL-31: an MD that fails every leg is soon left alone, though each request would prefer it for its cache."""
    async with open_stage(hits=dict.fromkeys(("p1", "p2", "rld1", "rld2", "md2"), 0) | {"md1": 192}) as stage:
        stage.path.is_instant = True
        stage.engines["md1"].script = Script(fault=Cut(None))
        for _ in range(30):
            assert ids_of(await read(stage.ask(max_tokens=3))) == unsplit(3)
        assert 2 <= len(stage.engines["md1"].calls) <= 10


async def test_a_client_that_leaves_counts_against_nobody() -> None:
    """STR-06: legs that end because the client has left are no failures of their engines."""
    async with open_stage({"handoff": {"mode": "one_shot"}}, ids=SMALL) as stage:
        stage.path.is_instant = True
        gate = HoldGate()
        stage.engines["md1"].script = Script(holds={5: gate})
        for turn in range(1, 4):
            answering = asyncio.create_task(read(stage.ask(max_tokens=4000)))
            await gate.arrivals(turn)
            answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)
            await stage.quiet()
            newest = stage.service.timelines.newest()
            assert newest is not None and newest.summary["outcome"] == "client_gone"
        assert all(instance.usable(0.0) and not instance.failures for instance in stage.pools.instances)


@pytest.mark.parametrize("before_the_first_token", [True, False])
async def test_silence_is_told(before_the_first_token: bool) -> None:
    """STR-16: whether P computes or RLD pauses, the client gets a sign of life each time the interval is over."""
    async with open_stage({"relay": {"keepalive_s": 0.02}}, ids=SMALL) as stage:
        gate = HoldGate()
        if before_the_first_token:
            stage.engines["p1"].script = Script(arrival=gate)
        else:
            stage.engines["rld1"].script = Script(holds={5: gate})
        alive = 0

        class Waiting(Collector):
            """Lets the engine go on after the third sign of life."""

            def keep_alive(self) -> None:
                nonlocal alive
                alive += gate.arrived > 0
                if alive == 3:
                    gate.open()

        assert ids_of(await read(stage.ask(), Waiting())) == unsplit()
        assert alive >= 3
        stage.path.transfers[-1].complete()
        await stage.quiet()


class BrokenEngine(VllmEngine):
    """An adapter that raises what no adapter may raise."""

    async def generate(self, leg: LegRequest, take: Take) -> None:
        """Fail after a chunk."""
        take(LegChunk((7,)))
        raise ZeroDivisionError


@pytest.mark.parametrize("id_", ["p1", "rld1"])
async def test_an_adapter_that_breaks_ends_its_leg(id_: str, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever an adapter raises, the answer goes on elsewhere or fails; nobody waits for ever."""
    rules = {"relay": {"max_attempts": 2, "transfer_retry_backoff_s": 0.01, "transfer_retry_backoff_max_s": 0.01}}
    async with open_stage(rules, ids=SMALL) as stage:
        instance = stage.pools[id_]
        instance.engine = BrokenEngine(id_, instance.spec.url)
        events: list[AnswerEvent] = []
        try:
            await read(stage.ask(max_tokens=6), Collector(events.append))
        except GatewayError as failure:
            assert failure.status == 502
        assert ids_of(events)
        assert "ZeroDivisionError" in caplog.text
        await instance.engine.aclose()


@pytest.mark.parametrize(("said", "expected_s"), [({"retry-after": "7"}, 7.0), ({}, 1.0)])
async def test_an_engine_s_retry_after_reaches_the_client(said: dict[str, str], expected_s: float) -> None:
    """Where every engine says when to come back the client is told the soonest; where none does, a second."""
    async with open_stage({"relay": QUICK | {"max_attempts": 2}}) as stage:
        for name, headers in (("p1", said), ("p2", {"retry-after": "30"} if said else {})):
            stage.engines[name].script = Script(fault=Refuse(503, headers=headers))
        with pytest.raises(GatewayError) as failed:
            await read(stage.ask())
        assert (failed.value.status, failed.value.retry_after_s) == (503, expected_s)


async def test_new_requests_go_where_an_engine_wants_them() -> None:
    """An engine that said when to come back gets no new request before, while its peer takes them."""
    async with open_stage(ids=("p1", "p2", "rld1", "md1")) as stage:
        stage.path.is_instant = True
        stage.engines["p1"].script = Script(fault=Refuse(503, headers={"retry-after": "60"}))
        for _ in range(6):
            assert ids_of(await read(stage.ask())) == unsplit()
        assert len(stage.engines["p1"].calls) <= 1 and len(stage.engines["p2"].calls) == 6
        await stage.quiet()
