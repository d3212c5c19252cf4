"""An RLD that waits until P's KV was seen in their region's store."""

import asyncio
from typing import Any

import pytest

from backends.types import LinkState
from gateway.relay.answer import RelayAnswer
from tests.fakes.gates import HoldGate
from tests.fakes.script import Script
from tests.gateway.relay.stage import (
    CHUNK_TOKENS,
    PROMPT,
    QUICK,
    Collector,
    LinkedPath,
    Stage,
    ids_of,
    open_stage,
    read,
    roles_of,
    unsplit,
)

SMALL = ("p1", "rld1", "md1")
CHUNKS = len(PROMPT) // CHUNK_TOKENS
PATIENT: dict[str, Any] = {"relay": QUICK | {"store_wait_s": 60, "store_wait_tokens": CHUNK_TOKENS}}
HASTY: dict[str, Any] = {"relay": QUICK | {"store_wait_s": 0.02, "store_wait_tokens": CHUNK_TOKENS}}


async def _prefilled(stage: Stage, answer: RelayAnswer, seen: int, ends: HoldGate) -> "asyncio.Task[Any]":
    """Run an answer until P has ended, at ``ends``, when so many chunks were seen in its store."""
    stage.engines["p1"].scripts.append(Script(end=ends))
    task = asyncio.create_task(read(answer, Collector()))
    await ends.arrivals()
    transfer = await stage.path.opened()
    transfer.see(seen)
    await transfer.taken()
    ends.open()
    await stage.engines["p1"].idle()
    return task


@pytest.mark.parametrize("seen", [0, CHUNKS - 2])
async def test_rld_waits_for_what_it_needs(seen: int) -> None:
    """P's stream has ended and its store lacks more than a little: RLD is called once it was seen there."""
    async with open_stage(PATIENT, ids=SMALL) as stage:
        answering = await _prefilled(stage, stage.ask(), seen, HoldGate())
        transfer = stage.path.transfers[-1]
        transfer.see(CHUNKS - 2)
        await transfer.taken()
        assert not stage.engines["rld1"].calls
        transfer.see(CHUNKS - 1)
        await stage.engines["rld1"].calls_made()
        transfer.complete()
        assert ids_of(await answering) == unsplit()
        await stage.quiet()


async def test_rld_does_not_wait_for_a_little() -> None:
    """What is nearly all there is not waited for, and RLD computes the rest."""
    async with open_stage(PATIENT, ids=SMALL) as stage:
        answering = await _prefilled(stage, stage.ask(), CHUNKS - 1, HoldGate())
        await stage.engines["rld1"].calls_made()
        stage.path.transfers[-1].complete()
        assert ids_of(await answering) == unsplit()


async def test_the_wait_ends() -> None:
    """KV that is never seen does not keep the client waiting for longer than the rule says."""
    async with open_stage(HASTY, ids=SMALL) as stage:
        answering = await _prefilled(stage, stage.ask(), 0, HoldGate())
        await stage.engines["rld1"].calls_made()
        timeline = stage.service.timelines.newest()
        assert timeline is not None
        assert [event["tokens"] for event in timeline.as_dict()["events"] if event["event"] == "kv_not_stored"] == [
            CHUNKS * CHUNK_TOKENS
        ]
        stage.path.transfers[-1].complete()
        assert ids_of(await answering) == unsplit()


@pytest.mark.parametrize("end", ["complete", "fail"])
async def test_a_transfer_that_ends_ends_the_wait(end: str) -> None:
    """All has crossed: MD goes on at once. Or nobody looks any more: RLD goes on."""
    async with open_stage(PATIENT, ids=SMALL) as stage:
        writing = HoldGate()
        stage.engines["rld1"].scripts.append(Script(holds={8: writing}))
        answering = await _prefilled(stage, stage.ask(), 0, HoldGate())
        getattr(stage.path.transfers[-1], end)()
        if end == "fail":
            await writing.arrivals()
            (await stage.path.opened(2)).complete()
        events = await answering
        assert ids_of(events) == unsplit()
        assert roles_of(events)[:2] == (["P", "MD"] if end == "complete" else ["P", "RLD"])


async def test_a_path_that_tells_nothing_is_not_waited_for() -> None:
    """Where nobody says what is in the store RLD begins at P's end."""
    async with open_stage(PATIENT, ids=SMALL) as stage:
        answering = asyncio.create_task(read(stage.ask()))
        await stage.engines["rld1"].calls_made()
        (await stage.path.opened()).complete()
        assert ids_of(await answering) == unsplit()


async def test_nobody_looks_over_a_link_that_is_down() -> None:
    """What was seen before the link broke says nothing of now."""
    path = LinkedPath()
    async with open_stage(PATIENT, ids=SMALL, path=path) as stage:
        gate = HoldGate()
        stage.engines["p1"].scripts.append(Script(end=gate))
        answering = asyncio.create_task(read(stage.ask()))
        await gate.arrivals()
        transfer = await path.opened()
        transfer.see(0)
        await transfer.taken()
        path.link_state = LinkState(1e6, 0, 0.03, up=False, wan_bytes_total=0)
        await stage.service.links.refresh()
        gate.open()
        await stage.engines["rld1"].calls_made()
        transfer.complete()
        assert ids_of(await answering) == unsplit()


async def test_a_client_that_leaves_ends_the_wait() -> None:
    """STR-04: nobody waits for nobody."""
    async with open_stage(PATIENT, ids=SMALL) as stage:
        answering = await _prefilled(stage, stage.ask(), 0, HoldGate())
        answering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await answering
        await stage.quiet()
        assert not stage.engines["rld1"].calls
