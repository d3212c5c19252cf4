"""What a sink does to its answer: it finds a stop string, it breaks, its reader is behind or gone."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest

from gateway.relay import answer_plan
from gateway.relay.answer import RelayAnswer
from gateway.relay.types import Finish, Tokens
from policies.eligibility import RequestFeatures
from tests.fakes.gates import HoldGate
from tests.fakes.script import Cut, Script, Verbatim
from tests.gateway.fleet.seams import Clock
from tests.gateway.relay.stage import (
    AnswerEvent,
    Collector,
    Stage,
    finish_of,
    ids_of,
    open_stage,
    read,
    unsplit,
)

SMALL = ("p1", "rld1", "md1")
PACED: dict[str, Any] = {
    "handoff": {"mode": "catch_up", "threshold_tokens": 2, "reserve_s": 10},
    "relay": {"max_attempts": 1, "transfer_retry_backoff_s": 0.001, "transfer_retry_backoff_max_s": 0.001},
}
TOKEN_S = 0.01


@dataclass(slots=True)
class Held:
    """An answer whose MD catches up, while RLD's tokens wait to be given until ``clock`` moves on."""

    stage: Stage
    answer: RelayAnswer
    clock: Clock
    extend: HoldGate
    collector: Collector = field(init=False)

    async def noted(self, event: str) -> None:
        """Wait until the answer's timeline has such an event."""
        (timeline,) = self.stage.service.timelines.find("r1")
        for _ in range(100_000):
            if event in [one["event"] for one in timeline.as_dict()["events"]]:
                return
            await asyncio.sleep(0)
        raise AssertionError(event)


@asynccontextmanager
async def open_held(relay: Script, each: Callable[[Held, AnswerEvent], None]) -> AsyncIterator[Held]:
    """Let RLD go on by ``relay``, from its 9th token on while MD catches up; ``each`` sees what the sink is given."""
    async with open_stage(PACED, ids=SMALL) as stage:
        gate = HoldGate()
        clock = stage.pools.clock = Clock(0.0)
        relay = Script(holds={8: gate, **relay.holds}, fault=relay.fault)
        stage.engines["rld1"].scripts.append(relay)
        held = Held(stage, stage.ask(), clock, HoldGate())
        stage.engines["md1"].script = Script(arrival=held.extend, fault=relay.fault and Cut(None))

        def take(event: AnswerEvent) -> None:
            clock.now_s += TOKEN_S
            each(held, event)

        held.collector = Collector(take)
        reading = asyncio.create_task(held.answer.run(held.collector))
        await gate.arrivals()
        (await stage.path.opened()).complete()
        await held.extend.arrivals()
        gate.open()
        try:
            yield held
            clock.now_s += 60.0
            await reading
        finally:
            reading.cancel()
            await held.answer.aclose()
            await asyncio.gather(reading, return_exceptions=True)
        held.extend.open()
        for transfer in stage.path.transfers:
            transfer.complete()
        await stage.quiet()


def has_waited(held: Held, event: AnswerEvent) -> bool:
    """Whether a timer gives it: the splice knows others behind tokens that waited, and an end waits for those."""
    return not isinstance(event, Tokens) or len(held.answer._splice.log) > event.position + len(event.ids)


def stop_at_held(held: Held, event: AnswerEvent) -> None:
    """Find a stop string in the first token that had to wait."""
    if isinstance(event, Tokens) and has_waited(held, event):
        held.answer.stop_at(event.position + 1)


@pytest.mark.parametrize("course", ["running", "finished", "failed"])
async def test_a_stop_in_tokens_that_waited_is_the_answers_end(course: str) -> None:
    """The tokens come before their Finish, and what was already known of the answer's end does not count any more."""
    relay = {
        "running": Script(holds={30: HoldGate()}),
        "finished": Script(),
        "failed": Script(fault=Cut(30)),
    }[course]
    async with open_held(relay, stop_at_held) as held:
        rld = held.stage.engines["rld1"]
        rld.script = Script(fault=Cut(None))
        await rld.sent(rld.calls[0], 30)
        if course != "running":
            await rld.idle()
            held.extend.open()
            await held.noted(course)
    shown = ids_of(held.collector.events)
    finish = finish_of(held.collector.events)
    assert shown == unsplit(len(shown)) and 9 <= len(shown) < 30
    assert (finish.reason, finish.completion_tokens) == ("stop", len(shown))
    newest = held.stage.service.timelines.newest()
    assert newest is not None and newest.summary["outcome"] == "stop"


async def test_a_stop_in_the_last_token_is_a_stop() -> None:
    """A stop string that ends with the very token at which the limit ends the answer is told as a stop."""
    async with open_stage(ids=SMALL) as stage:
        answer = stage.ask(max_tokens=10)

        def stop(event: AnswerEvent) -> None:
            if isinstance(event, Tokens) and event.position == 9:
                answer.stop_at(10)

        events = await read(answer, Collector(stop))
        assert ids_of(events) == unsplit(10)
        assert (finish_of(events).reason, finish_of(events).completion_tokens) == ("stop", 10)
        stage.path.transfers[-1].complete()
        await stage.quiet()


@pytest.mark.parametrize("kind", [Tokens, Finish])
async def test_a_sink_that_breaks_on_what_waited_ends_its_answer(kind: type[AnswerEvent]) -> None:
    """Whatever it raises is the answer's error, though it is raised in a timer's turn; it is given nothing more."""
    given: list[AnswerEvent] = []

    def break_(held: Held, event: AnswerEvent) -> None:
        given.append(event)
        if isinstance(event, kind) and has_waited(held, event):
            raise StopIteration("no future takes such an error")

    with pytest.raises(RuntimeError) as caught:
        async with open_held(Script(), break_) as held:
            await held.noted("finished")
    assert isinstance(caught.value.__cause__, StopIteration)
    assert isinstance(given[-1], kind) and len(given) == len(held.collector.events) + 1


@pytest.mark.parametrize("kind", [Tokens, Finish])
async def test_a_sink_that_breaks_is_no_fault_of_an_engine(kind: type[AnswerEvent]) -> None:
    """What it raises in the turn of an engine's bytes ends the answer, and no other engine is asked to go on."""
    async with open_stage() as stage:
        given: list[AnswerEvent] = []

        def break_(event: AnswerEvent) -> None:
            given.append(event)
            if isinstance(event, kind):
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await read(stage.ask(), Collector(break_))
        assert isinstance(given.pop(), kind) and not any(isinstance(event, kind) for event in given)
        assert not any(instance.failures for instance in stage.pools.instances)
        for transfer in stage.path.transfers:
            transfer.complete()
        await stage.quiet()


async def test_a_fault_in_a_decision_ends_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy that breaks while an answer runs is an error, and nobody waits for what will not be decided."""

    def choose_nothing(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(answer_plan, "choose_step", choose_nothing)
    async with open_stage(ids=SMALL) as stage:
        gate = HoldGate()
        stage.engines["rld1"].script = Script(holds={8: gate})
        reading = asyncio.create_task(read(stage.ask()))
        await gate.arrivals()
        (await stage.path.opened()).complete()
        with pytest.raises(ZeroDivisionError):
            await reading
        await stage.quiet()


async def test_an_answer_that_nobody_runs_any_more_gives_nothing() -> None:
    """Once its run was cancelled its engines are freed and its sink is left alone, before it is closed."""
    async with open_stage(ids=SMALL) as stage:
        gate = HoldGate()
        stage.engines["rld1"].script = Script(holds={5: gate})
        answer, collector = stage.ask(max_tokens=4000), Collector()
        running = asyncio.create_task(answer.run(collector))
        await gate.arrivals()
        running.cancel()
        gate.open()
        await asyncio.gather(running, return_exceptions=True)
        given = len(collector.events)
        await stage.quiet()
        assert len(collector.events) == given
        await answer.aclose()


async def test_engines_are_not_read_while_the_reader_is_behind() -> None:
    """Without room each leg gives one chunk at most, but a leg that is done ends, so that the next one begins."""
    async with open_stage(ids=SMALL) as stage:
        collector = Collector(lambda event: collector.room.clear())
        reading = asyncio.create_task(read(stage.ask(), collector))
        call = await stage.engines["rld1"].calls_made()
        await stage.engines["rld1"].sent(call, 39)
        for _ in range(100):
            await asyncio.sleep(0)
        assert len(ids_of(collector.events)) <= 2
        while not reading.done():
            collector.room.set()
            await asyncio.sleep(0)
        assert ids_of(await reading) == unsplit()
        stage.path.transfers[-1].complete()
        await stage.quiet()


async def test_a_leg_that_its_own_tokens_close_reads_no_further() -> None:
    """A stop string in the midst of one packet: the leg ends there, and counts once."""
    async with open_stage(ids=SMALL) as stage:
        stage.path.is_instant = True
        stage.engines["md1"].script = Script(fault=Verbatim((write_answer(unsplit()),)))
        answer = stage.ask(features=RequestFeatures(presence_penalty=0.5))

        def stop(event: AnswerEvent) -> None:
            if isinstance(event, Tokens) and event.position == 4:
                answer.stop_at(5)

        events = await read(answer, Collector(stop))
        assert ids_of(events) == unsplit(5) and finish_of(events).completion_tokens == 5
        (timeline,) = stage.service.timelines.find("r1")
        ends = [event["outcome"] for event in timeline.as_dict()["events"] if event["event"] == "leg_ended"]
        assert ends == ["ended", "closed"]


def write_answer(ids: list[int]) -> bytes:
    """An engine's whole stream: a chunk for each id, the usage, [DONE]."""
    head = {"id": "x", "object": "text_completion", "created": 1, "model": "demo"}
    choices = [{"index": 0, "text": "", "token_ids": [id_], "logprobs": None, "finish_reason": None} for id_ in ids]
    choices[-1]["finish_reason"] = "length"
    usage = {"prompt_tokens": 200, "completion_tokens": len(ids), "total_tokens": 200 + len(ids)}
    chunks = [head | {"choices": [choice]} for choice in choices] + [head | {"choices": [], "usage": usage}]
    return b"".join(b"data: %s\n\n" % orjson.dumps(chunk) for chunk in chunks) + b"data: [DONE]\n\n"
