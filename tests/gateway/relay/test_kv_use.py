"""Answers whose KV crossed: whether MD used it, and what follows where it did not."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from backends.types import KvShape, LinkState
from gateway.fleet.kv_trust import STRIKES
from gateway.fleet.pools import store_id
from gateway.relay.router import Router
from gateway.relay.types import GenerationRequest
from tests.fakes.gates import HoldGate
from tests.fakes.script import Cut, Script
from tests.gateway.relay.stage import (
    CHUNK_TOKENS,
    MODEL,
    PROMPT,
    QUICK,
    Collector,
    LinkedPath,
    Stage,
    finish_of,
    ids_of,
    open_stage,
    read,
    roles_of,
    rules_of,
    unsplit,
)

SMALL = ("p1", "rld1", "md1")
FULL = len(PROMPT) // CHUNK_TOKENS * CHUNK_TOKENS
STORE = (store_id("b", MODEL), len(PROMPT))
ONE_SHOT: dict[str, Any] = {"handoff": {"mode": "one_shot"}}
CATCH_UP: dict[str, Any] = {"handoff": {"mode": "catch_up", "threshold_tokens": 0}}
IMPATIENT: dict[str, Any] = {"relay": QUICK | {"kv_first_chunk_s": 0.05, "keepalive_s": 0.1}}
"""A client that heard nothing for ``keepalive_s`` since RLD's last token has waited longer than for a first chunk."""
DOWN = LinkState(rate_bytes_per_s=1e6, queued_bytes=0, rtt_s=0.03, up=False, wan_bytes_total=0)


class Listener(Collector):
    """A sink that tells when nothing came for a while."""

    def __init__(self) -> None:
        super().__init__()
        self.hears_nothing = asyncio.Event()

    def keep_alive(self) -> None:
        """Nothing came for ``keepalive_s``."""
        self.hears_nothing.set()


def sample(stage: Stage, name: str, **labels: str) -> float:
    """A metric as it is shown."""
    labels = {"model": MODEL, "link": "a->b"} | labels
    return stage.service.metrics.registry.get_sample_value(name, labels) or 0.0


def events(service: Router, name: str) -> list[dict[str, Any]]:
    """What the newest answer's timeline has under a name."""
    timeline = service.timelines.newest()
    assert timeline is not None
    return [event for event in timeline.as_dict()["events"] if event["event"] == name]


async def answer_unread(stage: Stage, cached_tokens: int | None = 0) -> None:
    """One answer whose KV crosses; MD says that it took ``cached_tokens`` from a cache."""
    stage.path.is_instant = True
    stage.engines["md1"].script = Script(cached_tokens=cached_tokens)
    assert ids_of(await read(stage.ask())) == unsplit()
    await stage.quiet()


async def test_read_kv_is_booked() -> None:
    """The region's store is booked as holding the prompt once MD has taken the KV, and nothing is counted."""
    async with open_stage(ids=SMALL) as stage:
        await answer_unread(stage, FULL)
        assert STORE in stage.index.routed
        assert sample(stage, "pdd_kv_unread_tokens_total") == 0


@pytest.mark.parametrize("rules", [ONE_SHOT, CATCH_UP])
async def test_unread_kv_is_counted_and_not_booked(rules: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    """POL-102: MD that computes again what crossed is named, the tokens are counted, and its store is not booked."""
    async with open_stage(rules, ids=SMALL) as stage:
        await answer_unread(stage)
        assert sample(stage, "pdd_kv_unread_tokens_total") == FULL
        assert STORE not in stage.index.routed
        assert any(id_ == "md1" for id_, _ in stage.index.routed)
        (event,) = events(stage.service, "kv_unread")
        assert (event["instance"], event["cached_tokens"]) == ("md1", 0)
        assert f"md1 took 0 prompt tokens from a cache where KV of {FULL} had crossed" in caplog.text


@pytest.mark.parametrize("cached_tokens", [FULL - CHUNK_TOKENS, FULL, len(PROMPT) - 1])
async def test_one_chunk_less_is_no_fault(cached_tokens: int) -> None:
    """Engines compute the end of a prompt themselves: up to one chunk may be missing."""
    async with open_stage(ids=SMALL) as stage:
        await answer_unread(stage, cached_tokens)
        assert sample(stage, "pdd_kv_unread_tokens_total") == 0
        assert STORE in stage.index.routed


async def test_engines_may_compute_a_little_rather_than_load_it() -> None:
    """What an engine may compute although its KV is there is no fault, and no proof that KV is used either."""
    async with open_stage({"relay": QUICK | {"kv_least_load_tokens": FULL}}, ids=SMALL) as stage:
        for _ in range(STRIKES):
            await answer_unread(stage)
        assert sample(stage, "pdd_kv_unread_tokens_total") == 0
        assert stage.service.trust.believes(("a", "b"), MODEL)
    async with open_stage({"relay": QUICK | {"kv_least_load_tokens": FULL - 1}}, ids=SMALL) as stage:
        await answer_unread(stage)
        assert sample(stage, "pdd_kv_unread_tokens_total") == FULL


async def test_an_engine_that_does_not_count_is_not_accused() -> None:
    """Where MD tells no cached tokens its store is booked as before, and the link stays."""
    async with open_stage(ids=SMALL) as stage:
        for _ in range(STRIKES):
            await answer_unread(stage, None)
        assert STORE in stage.index.routed
        assert stage.service.trust.believes(("a", "b"), MODEL)


async def test_only_the_first_leg_on_an_instance_tells() -> None:
    """What MD has cached by then is its own work: the final after an unread extend does not count as read."""
    async with open_stage(CATCH_UP, ids=SMALL) as stage:
        gate = HoldGate()
        stage.engines["rld1"].scripts.append(Script(holds={10: gate}))
        stage.engines["md1"].scripts.append(Script(cached_tokens=0))
        reading = asyncio.create_task(read(stage.ask()))
        await gate.arrivals()
        stage.path.transfers[0].complete()
        assert (await stage.engines["md1"].calls_made()).body["max_tokens"] == 1
        gate.open()
        assert roles_of(await reading) == ["P", "RLD", "MD"]
        assert sample(stage, "pdd_kv_unread_tokens_total") == FULL
        assert STORE not in stage.index.routed


async def test_aligning_tells_too() -> None:
    """An answer that RLD ended: the leg that brings MD into line shows whether MD uses what crossed."""
    async with open_stage(ids=SMALL) as stage:
        stage.engines["md1"].script = Script(cached_tokens=0)
        assert roles_of(await read(stage.ask(max_tokens=5)))[-1] == "RLD"
        (await stage.path.opened()).complete()
        await stage.quiet()
        assert sample(stage, "pdd_kv_unread_tokens_total") == FULL
        assert STORE not in stage.index.routed


async def test_a_link_whose_kv_is_not_read_is_given_up_and_comes_back() -> None:
    """After three in a row MD computes prompts itself; later one request tries, and once KV is read all may again."""
    async with open_stage(ids=SMALL) as stage:
        for _ in range(STRIKES):
            await answer_unread(stage)
        assert stage.service.trust.list_lost([("a", "b")])
        for _ in range(2):
            lost = stage.ask()
            assert (lost.plan_name, lost.plan_reason) == ("passthrough", "kv_unread")
            assert ids_of(await read(lost)) == unsplit()
        assert len(stage.path.transfers) == STRIKES
        stage.service.trust.note_restart("b", MODEL)
        stage.engines["md1"].script = Script(cached_tokens=FULL)
        trial, other = stage.ask(), stage.ask()
        assert (trial.plan_name, other.plan_name) == ("relay", "passthrough")
        assert [ids_of(events) for events in await asyncio.gather(read(trial), read(other))] == [unsplit()] * 2
        await stage.quiet()
        assert stage.ask().plan_name == "relay"
        assert stage.service.trust.list_lost([("a", "b")]) == []


async def test_looking_is_no_trial() -> None:
    """A decision that is only shown does not use up the one request that may try."""
    async with open_stage(ids=SMALL) as stage:
        for _ in range(STRIKES):
            await answer_unread(stage)
        stage.service.trust.note_restart("b", MODEL)
        request = GenerationRequest("looked at", MODEL, PROMPT, max_tokens=40)
        for _ in range(2):
            assert stage.service.decide(request, rules_of(stage)).plan.kind == "relay"
        asked = stage.ask()
        assert asked.plan_name == "relay"
        assert stage.ask().plan_name == "passthrough"
        await asked.aclose()


async def test_kv_that_is_not_in_ps_store_is_not_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    """POL-102: without a first chunk MD computes the prompt while RLD writes, and it is said what keys were made of."""
    async with open_stage(IMPATIENT | ONE_SHOT, ids=SMALL, path=LinkedPath(has_chunks=False)) as stage:
        gate = HoldGate()
        stage.engines["rld1"].scripts.append(Script(holds={10: gate}))
        reading = asyncio.create_task(read(stage.ask(cache_salt="secret")))
        await gate.arrivals()
        extend = await stage.engines["md1"].calls_made()
        assert extend.body["max_tokens"] == 1
        gate.open()
        answer = await reading
        assert (ids_of(answer), roles_of(answer)) == (unsplit(), ["P", "RLD", "MD"])
        assert finish_of(answer).reason == "length"
        assert [transfer.state for transfer in stage.path.transfers] == ["aborted"]
        (event,) = events(stage.service, "transfer_failed")
        for words in ("dialect lmcache", "model name demo", "chunks of 16 tokens", "dtype float32", "world size 1"):
            assert words in event["why"] and words in caplog.text
        assert "with a salt" in caplog.text
        assert "secret" not in caplog.text
        assert sample(stage, "pdd_kv_unseen_total") == 1
        assert STORE not in stage.index.routed


async def test_direct_does_not_wait_for_kv_that_never_comes() -> None:
    """An answer that must not be split and waits for its KV is made by MD alone, a little later."""
    rules = IMPATIENT | {"direct_wan_bound_s": 100, "pipelines": ["direct"]}
    async with open_stage(rules, ids=SMALL, path=LinkedPath(has_chunks=False)) as stage:
        answer = await read(stage.ask())
        assert (ids_of(answer), roles_of(answer)) == (unsplit(), ["P", "MD"])
        assert sample(stage, "pdd_kv_unseen_total") == 1


async def test_a_chunk_that_was_seen_may_take_its_time() -> None:
    """A transfer whose first chunk is there waits for the link as long as it takes."""
    async with open_stage(IMPATIENT | ONE_SHOT, ids=SMALL) as stage:
        gate, listener = HoldGate(), Listener()
        stage.engines["rld1"].scripts.append(Script(holds={10: gate}))
        reading = asyncio.create_task(read(stage.ask(), listener))
        await gate.arrivals()
        await listener.hears_nothing.wait()
        (transfer,) = stage.path.transfers
        assert transfer.state == "running"
        transfer.complete()
        gate.open()
        assert ids_of(await reading) == unsplit()
        assert sample(stage, "pdd_kv_unseen_total") == 0


async def test_a_link_that_is_down_says_nothing_of_the_keys() -> None:
    """While the link is down nobody can look into P's store: the transfer goes on, and nothing is counted."""
    async with open_stage(IMPATIENT | ONE_SHOT, ids=SMALL, path=LinkedPath(has_chunks=False)) as stage:
        gate, listener = HoldGate(), Listener()
        stage.engines["rld1"].scripts.append(Script(holds={10: gate}))
        asked = stage.ask()
        stage.path.link_state = DOWN
        await stage.service.links.refresh()
        reading = asyncio.create_task(read(asked, listener))
        await gate.arrivals()
        await listener.hears_nothing.wait()
        (transfer,) = stage.path.transfers
        assert transfer.state == "running"
        assert sample(stage, "pdd_kv_unseen_total") == 0
        transfer.complete()
        gate.open()
        assert ids_of(await reading) == unsplit()


async def test_a_new_engine_process_takes_over_no_answer() -> None:
    """An MD without a verdict answers alone only: it is in no other plan, and takes no running answer over."""
    async with open_stage(ids=("p1", "rld1", "md1", "md2")) as stage:
        pools = stage.pools
        pools["md2"].held_until_s = pools.clock() + 60
        assert {stage.ask().plan_name for _ in range(4)} == {"relay"}
        stage.path.is_instant = True
        stage.engines["md1"].scripts.append(Script(fault=Cut(5)))
        events_seen = await read(stage.ask())
        assert ids_of(events_seen) == unsplit()
        assert not stage.engines["md2"].calls
        pools["md1"].held_until_s = pools.clock() + 60
        alone = stage.ask()
        assert (alone.plan_name, alone.plan_reason) == ("passthrough", "first_canary")
        await read(alone)
        await stage.quiet()


TOKEN_BYTES = 4096
SHAPE = KvShape("split", 1, 1, TOKEN_BYTES // 2)


def of_shape(stage: Stage, shape: KvShape | None) -> None:
    """Let the gateway know, or not, how the model's KV is cut."""
    facts = stage.service.models[MODEL]
    assert facts.kv_bytes_per_token == TOKEN_BYTES
    stage.service = replace(stage.service, models={MODEL: replace(facts, kv_shape=shape)})


async def answer_sized(stage: Stage, token_bytes: int) -> str:
    """One answer for whose KV P's store shows chunks of a size; how the transfer ended."""
    gate, count = HoldGate(), len(stage.path.transfers)
    stage.engines["rld1"].scripts.append(Script(holds={10: gate}))
    reading = asyncio.create_task(read(stage.ask()))
    await gate.arrivals()
    transfer = stage.path.transfers[count]
    transfer.see(1, token_bytes * CHUNK_TOKENS)
    transfer.complete()
    await stage.path.idle()
    gate.open()
    assert ids_of(await reading) == unsplit()
    await stage.quiet()
    return transfer.state


async def test_kv_of_another_size_is_not_moved(caplog: pytest.LogCaptureFixture) -> None:
    """POL-102: chunks that are off by more than 1 % are named and given up, and the link is given up for the model."""
    async with open_stage(ONE_SHOT, ids=SMALL) as stage:
        of_shape(stage, SHAPE)
        stage.engines["md1"].script = Script(cached_tokens=None)
        assert await answer_sized(stage, TOKEN_BYTES) == "complete"
        for _ in range(STRIKES):
            assert await answer_sized(stage, TOKEN_BYTES // 2) == "aborted"
        assert "2048 bytes of KV a token are stored where 4096 were expected: wrong kv_bytes_per_token" in caplog.text
        assert (stage.ask().plan_name, stage.ask().plan_reason) == ("passthrough", "kv_unread")


async def test_a_bridge_that_finds_another_size_counts_alike() -> None:
    """A path that refuses KV of another size by itself is not asked again and again: the link is given up."""
    async with open_stage(ONE_SHOT, ids=SMALL) as stage:
        for number in range(STRIKES):
            asked = stage.ask()
            assert stage.service.trust.believes(("a", "b"), MODEL)
            reading = asyncio.create_task(read(asked))
            transfer = await stage.path.opened(number + 1)
            assert transfer.request.checks_size
            transfer.refuse("bridge: wrong size: the sending store's chunk has 2 bytes")
            assert ids_of(await reading) == unsplit()
            await stage.quiet()
        (line,) = stage.service.trust.list_lost([("a", "b")])
        assert "wrong size: the sending store's chunk has 2 bytes" in line
        stage.service.trust.note_restart("b", MODEL)
        await read(stage.ask())
        assert not stage.path.transfers[-1].request.checks_size


async def test_a_trial_that_is_used_shows_the_right_size() -> None:
    """A request that tries the link moves KV of whatever size; once MD has used it plans count with that."""
    async with open_stage(ONE_SHOT, ids=SMALL) as stage:
        of_shape(stage, SHAPE)
        for _ in range(STRIKES):
            await answer_sized(stage, 2 * TOKEN_BYTES)
        stage.service.trust.note_restart("b", MODEL)
        stage.engines["md1"].script = Script(cached_tokens=FULL)
        assert await answer_sized(stage, 2 * TOKEN_BYTES) == "complete"
        assert stage.service.sizes.of(MODEL, TOKEN_BYTES) == 2 * TOKEN_BYTES
        assert stage.service.snapshot(MODEL, None).kv_bytes_per_token == 2 * TOKEN_BYTES
        assert await answer_sized(stage, 2 * TOKEN_BYTES) == "complete"


async def test_a_figure_that_is_far_off_raises_an_alarm() -> None:
    """POL-102: where config.json does not tell the size exactly KV is moved, and a factor of two is told of."""
    async with open_stage(ONE_SHOT, ids=SMALL) as stage:
        of_shape(stage, None)
        assert await answer_sized(stage, TOKEN_BYTES * 3 // 2) == "complete"
        assert stage.service.sizes.list_odd([MODEL]) == []
        assert await answer_sized(stage, 25 * TOKEN_BYTES) == "complete"
        (line,) = stage.service.sizes.list_odd([MODEL])
        assert line.startswith(f"{MODEL}: 102400 bytes of KV a token are stored where 4096 were expected")
        assert stage.service.sizes.list_odd([]) == []
