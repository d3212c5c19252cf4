"""Answers over KV paths on which engines move the KV themselves: when transfers begin, and who gets a ticket."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from backends.types import PathTraits
from tests.fakes.gates import HoldGate
from tests.fakes.loans import Loans
from tests.fakes.script import Cut, Refuse, Script
from tests.gateway.relay.stage import (
    PROMPT,
    QUICK,
    LinkedPath,
    Stage,
    finish_of,
    ids_of,
    open_stage,
    read,
    roles_of,
    unsplit,
)

PULLED = PathTraits(can_stop=False, reports_progress=False, overlaps_prefill=False)
LENT = PathTraits(can_stop=False, reports_progress=False, overlaps_prefill=False, lends=True)
SMALL = ("p1", "rld1", "md1")
ONE_SHOT: dict[str, Any] = {"handoff": {"mode": "one_shot"}}
SINGULAR: dict[str, Any] = {"singular": {"min_uncached_tokens": 1, "budget": 0.25}, "alignment": {"bound": 1}}


@asynccontextmanager
async def open_lent(rules: dict[str, Any] = ONE_SHOT, **fields: Any) -> AsyncIterator[tuple[Stage, Loans]]:
    """A stage whose engines lend each other KV."""
    loans = Loans()
    async with open_stage(rules, ids=SMALL, path=LinkedPath(traits=LENT), **fields) as stage:
        for engine in stage.engines.values():
            engine.loans = loans
        yield stage, loans


async def test_a_pull_begins_when_p_has_ended() -> None:
    """No transfer is opened while P computes; then it names the engines between which KV moves."""
    gate = HoldGate()
    async with open_stage(ONE_SHOT, ids=SMALL, path=LinkedPath(traits=PULLED)) as stage:
        stage.engines["p1"].scripts.append(Script(end=gate))
        reading = asyncio.create_task(read(stage.ask()))
        await gate.arrivals()
        assert not stage.path.transfers
        gate.open()
        transfer = await stage.path.opened()
        assert (transfer.request.prefill, transfer.request.main) == ("p1", "md1")
        assert transfer.request.served_model == "demo"
        transfer.complete()
        assert ids_of(await reading) == unsplit()
        await stage.quiet()


async def test_a_pull_begins_although_p_died_after_its_token() -> None:
    """P's token is out and P fails: nobody waits for P any more, MD gets what it can, and the answer is whole."""
    async with open_stage(ONE_SHOT, ids=SMALL, path=LinkedPath(traits=PULLED, is_instant=True)) as stage:
        stage.engines["p1"].scripts.append(Script(fault=Cut(1)))
        events = await read(stage.ask())
        assert ids_of(events) == unsplit() and roles_of(events)[-1] == "MD"
        await stage.quiet()


async def test_a_client_that_leaves_while_p_computes_opens_nothing() -> None:
    """A transfer that waits for P is given up with its answer."""
    gate = HoldGate()
    async with open_stage(ONE_SHOT, ids=SMALL, path=LinkedPath(traits=PULLED)) as stage:
        stage.engines["p1"].scripts.append(Script(holds={0: gate}))
        reading = asyncio.create_task(read(stage.ask()))
        await gate.arrivals()
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        gate.open()
        await stage.quiet()
        assert not stage.path.transfers


async def test_a_pull_aims_at_the_md_that_lives() -> None:
    """When MD is lost, the next try of the transfer goes to the MD that will write."""
    path = LinkedPath(traits=PULLED)
    async with open_stage(ONE_SHOT, ids=("p1", "rld1", "md1", "md2"), path=path) as stage:
        reading = asyncio.create_task(read(stage.ask(max_tokens=400)))
        first = await path.opened()
        lost = first.request.main
        assert lost is not None
        stage.pools[lost].reachable = False
        first.fail()
        second = await path.opened(2)
        assert {lost, second.request.main} == {"md1", "md2"}
        second.complete()
        assert ids_of(await reading) == unsplit(400)
        await stage.quiet()


async def test_what_rld_ends_first_is_not_stopped_where_stopping_saves_nothing() -> None:
    """On a path that cannot stop, even a request that could be singular leaves its transfer to complete."""
    path = LinkedPath(traits=PULLED)
    async with open_stage(ONE_SHOT | SINGULAR, ids=SMALL, path=path) as stage:
        gate = HoldGate()
        stage.engines["rld1"].scripts.append(Script(holds={1: gate}))
        reading = asyncio.create_task(read(stage.ask(max_tokens=10)))
        transfer = await path.opened()
        gate.open()
        finish_of(await reading)
        assert stage.path.running == 1
        transfer.complete()
        await stage.quiet()
        assert transfer.state == "complete"


async def test_relay_reads_p_by_a_ticket_and_makes_every_token() -> None:
    """P lends; RLD gets P's ticket with exactly P's prompt and writes from position 0; MD's extends carry none."""
    async with open_lent() as (stage, loans):
        gate = HoldGate()
        stage.engines["rld1"].scripts.append(Script(holds={6: gate}))
        reading = asyncio.create_task(read(stage.ask()))
        await gate.arrivals()
        (await stage.path.opened()).complete()
        events = await reading
        assert ids_of(events) == unsplit() and roles_of(events) == ["RLD", "MD"]
        assert stage.engines["p1"].calls[0].body["stream"] is False
        relay, final = stage.engines["rld1"].calls[0], stage.engines["md1"].calls[-1]
        assert relay.prompt == PROMPT and relay.body["kv_transfer_params"]["remote_request_id"] == "p1-0"
        assert "kv_transfer_params" not in final.body
        assert loans.redeemed == ["p1-0"] and not loans.spoilt
        await stage.quiet()


async def test_rld_reads_p_while_the_bridge_reads_the_store() -> None:
    """Both paths at once: the transfer begins with P's prefill, and RLD has P's ticket and waits for no store."""
    loans, computing, writing = Loans(), HoldGate(), HoldGate()
    patient = {"relay": QUICK | {"store_wait_s": 60, "store_wait_tokens": 0}}
    async with open_stage(ONE_SHOT | patient, ids=SMALL, lends=True) as stage:
        for engine in stage.engines.values():
            engine.loans = loans
        stage.engines["p1"].scripts.append(Script(arrival=computing))
        stage.engines["rld1"].scripts.append(Script(holds={6: writing}))
        answer = stage.ask()
        reading = asyncio.create_task(read(answer))
        await computing.arrivals()
        transfer = await stage.path.opened()
        transfer.see(0)
        await transfer.taken()
        computing.open()
        await writing.arrivals()
        transfer.complete()
        events = await reading
        assert ids_of(events) == unsplit() and roles_of(events) == ["RLD", "MD"]
        assert loans.redeemed == ["p1-0"] and not loans.spoilt
        assert all("kv_transfer_params" not in call.body for call in stage.engines["md1"].calls)
        await stage.quiet()


async def test_a_fused_p_lends_nothing() -> None:
    """Where P writes on itself nobody reads its memory, and its token is shown at once."""
    loans, writing = Loans(), HoldGate()
    async with open_stage(ONE_SHOT | {"relay": QUICK | {"fused": "always"}}, ids=SMALL, lends=True) as stage:
        for engine in stage.engines.values():
            engine.loans = loans
        stage.engines["p1"].scripts.append(Script(holds={6: writing}))
        reading = asyncio.create_task(read(stage.ask()))
        await writing.arrivals()
        (await stage.path.opened()).complete()
        events = await reading
        assert ids_of(events) == unsplit() and roles_of(events) == ["P", "MD"]
        assert not loans.lent


async def test_relay_that_is_replaced_gets_no_second_ticket() -> None:
    """RLD dies mid-answer: whoever goes on has more ids than the prompt, and computes them."""
    async with open_lent() as (stage, loans):
        stage.engines["rld1"].scripts.append(Script(fault=Cut(5)))
        events = await read(stage.ask(max_tokens=20))
        assert ids_of(events) == unsplit(20)
        assert not loans.spoilt and loans.redeemed == ["p1-0"]


async def test_relay_that_refuses_the_first_time_starts_without_the_spent_ticket() -> None:
    """A ticket that was given out once is not given out again, as P may have freed what it names."""
    async with open_lent() as (stage, loans):
        stage.engines["rld1"].scripts.append(Script(fault=Refuse(503, b"")))
        events = await read(stage.ask(max_tokens=20))
        assert ids_of(events) == unsplit(20)
        assert len(stage.engines["rld1"].calls) == 2
        assert "kv_transfer_params" not in stage.engines["rld1"].calls[1].body and not loans.spoilt


async def test_ticket_beyond_its_lease_is_not_used() -> None:
    """After the lease P's memory may hold something else: RLD computes the prompt."""
    async with open_lent(lease_s=0.0) as (stage, loans):
        events = await read(stage.ask(max_tokens=20))
        assert ids_of(events) == unsplit(20)
        assert "kv_transfer_params" not in stage.engines["rld1"].calls[0].body
        assert not loans.redeemed


async def test_direct_shows_ps_token_and_lends_nothing() -> None:
    """Without RLD P streams as ever; the transfer fetches a ticket of its own."""
    hits = {"p1": 192, "rld1": 0, "md1": 192}
    async with open_lent(hits=hits) as (stage, loans):
        stage.path.is_instant = True
        events = await read(stage.ask())
        assert ids_of(events) == unsplit() and roles_of(events) == ["P", "MD"]
        assert stage.engines["p1"].calls[0].body["stream"] is True and not loans.lent


@pytest.mark.parametrize("tokens", [1, 2])
async def test_short_answers_are_whole(tokens: int) -> None:
    """P's token is not shown, so even an answer of one token is RLD's or MD's, once."""
    async with open_lent() as (stage, loans):
        stage.path.is_instant = True
        events = await read(stage.ask(max_tokens=tokens))
        assert ids_of(events) == unsplit(tokens) and "P" not in roles_of(events)
        assert not loans.spoilt
