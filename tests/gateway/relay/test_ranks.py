"""Engines with data-parallel ranks: which rank runs an answer's legs, and that it is one for all of them."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from backends.types import PathTraits
from gateway.relay.types import GenerationRequest
from tests.fakes.gates import HoldGate
from tests.fakes.script import Cut, Script
from tests.gateway.relay.stage import (
    MODEL,
    PROMPT,
    LinkedPath,
    Stage,
    ids_of,
    open_stage,
    read,
    roles_of,
    rules_of,
    unsplit,
)

SMALL = ("p1", "rld1", "md1")
CATCH_UP: dict[str, Any] = {"handoff": {"mode": "catch_up", "threshold_tokens": 2}}
ONE_SHOT: dict[str, Any] = {"handoff": {"mode": "one_shot"}}
PULLED = PathTraits(can_stop=False, reports_progress=False, overlaps_prefill=False)
EVEN = {"p1": (0, 0), "rld1": (0, 0), "md1": (0, 0)}


def ranks_of(stage: Stage, id_: str) -> list[str | None]:
    """The rank that each call of an engine named."""
    return [call.headers.get("x-data-parallel-rank") for call in stage.engines[id_].calls]


async def relay(stage: Stage, rld_tokens: int = 8) -> None:
    """Run one relayed answer, whose KV arrives when RLD has sent ``rld_tokens`` ids."""
    gate = HoldGate()
    stage.engines["rld1"].scripts.append(Script(holds={rld_tokens: gate}))
    reading = asyncio.create_task(read(stage.ask()))
    await gate.arrivals()
    (await stage.path.opened(len(stage.path.transfers) or 1)).complete()
    events = await reading
    assert ids_of(events) == unsplit() and roles_of(events) == ["P", "RLD", "MD"]
    await stage.quiet()


async def test_all_legs_go_to_the_rank_that_has_the_prompt() -> None:
    """Extends and the final go to MD's best rank, P's leg to P's; an engine without ranks is told none."""
    async with open_stage(CATCH_UP, ids=SMALL, ranks={"p1": (64, 0), "md1": (0, 0, 64)}) as stage:
        await relay(stage)
        found = ranks_of(stage, "md1")
        assert len(found) >= 2 and set(found) == {"2"}
        assert ranks_of(stage, "p1") == ["0"]
        assert set(ranks_of(stage, "rld1")) == {None}
        routed = {(id_, rank) for id_, rank in stage.index.routed_ranks if id_ in SMALL}
        assert routed == {("p1", 0), ("rld1", 0), ("md1", 2)}


async def test_no_header_without_ranks() -> None:
    """Engines with one rank are asked as ever, whatever the leg."""
    async with open_stage(CATCH_UP, ids=SMALL) as stage:
        await relay(stage)
        headers = [call.headers for engine in stage.engines.values() for call in engine.calls]
        assert len(headers) >= 4 and not any("x-data-parallel-rank" in sent for sent in headers)


async def test_unknown_hits_leave_an_answer_on_one_rank() -> None:
    """Where nobody knows what ranks hold, each engine's legs are still all on one of them."""
    async with open_stage(CATCH_UP, ids=SMALL, ranks=EVEN) as stage:
        stage.index.hits.clear()
        await relay(stage)
        for id_ in SMALL:
            found = ranks_of(stage, id_)
            assert found and len(set(found)) == 1 and found[0] in ("0", "1")


async def test_idle_rank_is_preferred() -> None:
    """While one answer runs on a rank, the next goes to the other where neither has its prompt."""
    async with open_stage(ONE_SHOT, ids=SMALL, ranks={"p1": (0, 0)}) as stage:
        gate = HoldGate()
        stage.engines["p1"].script = Script(holds={0: gate})
        readers = []
        for number in range(1, 5):
            readers.append(asyncio.create_task(read(stage.ask(max_tokens=1))))
            await gate.arrivals(number)
        assert stage.pools["p1"].rank_legs == {0: 2, 1: 2}
        gate.open()
        await asyncio.gather(*readers)
        assert sorted(rank or "" for rank in ranks_of(stage, "p1")) == ["0", "0", "1", "1"]
        assert stage.pools["p1"].rank_legs.total() == 0


async def test_hit_is_the_chosen_rank_s() -> None:
    """A decision counts on what the rank has that will run the legs, not on what a busier one has."""
    async with open_stage(ids=SMALL, ranks={"md1": (192, 0)}) as stage:
        request, rules = GenerationRequest("r", MODEL, PROMPT, 10), rules_of(stage)
        facts = stage.service.decide(request, rules).facts
        hit = facts.hits["md1"]
        assert hit is not None and (hit.tokens, facts.ranks) == (192, {"md1": 0})
        stage.pools["md1"].rank_legs[0] = 16
        facts = stage.service.decide(request, rules).facts
        hit = facts.hits["md1"]
        assert hit is not None and (hit.tokens, facts.ranks) == (0, {"md1": 1})


@pytest.mark.parametrize("fault_after", [0, 5])
async def test_whoever_steps_in_has_a_rank_of_its_own(fault_after: int) -> None:
    """MD fails before or within its final: the other MD's legs go to the rank that has the prompt there."""
    ranks = {"md1": (176, 0, 0), "md2": (0, 0, 16)}
    async with open_stage(ONE_SHOT, ids=("p1", "rld1", "md1", "md2"), ranks=ranks) as stage:
        stage.engines["md1"].script = Script(fault=Cut(fault_after))
        await relay(stage)
        assert set(ranks_of(stage, "md1")) == {"0"}
        assert set(ranks_of(stage, "md2")) == {"2"}


async def test_rank_that_is_gone_is_chosen_anew() -> None:
    """An engine that has restarted with fewer ranks gets no leg for one that it has not."""
    async with open_stage(ONE_SHOT, ids=SMALL, ranks={"md1": (0, 0, 64)}) as stage:
        gate = HoldGate()
        stage.engines["rld1"].scripts.append(Script(holds={8: gate}))
        reading = asyncio.create_task(read(stage.ask()))
        await gate.arrivals()
        stage.pools["md1"].spec = _with_ranks(stage, "md1", 2)
        (await stage.path.opened()).complete()
        assert ids_of(await reading) == unsplit()
        assert set(ranks_of(stage, "md1")) <= {"0", "1"}
        await stage.quiet()


async def test_aligning_extends_the_same_rank() -> None:
    """When RLD ends the answer, the KV is moved for the rank that would have had it, and that one is extended."""
    path = LinkedPath(traits=PULLED)
    async with open_stage(ids=SMALL, ranks={"p1": (64, 0), "md1": (0, 64)}, path=path) as stage:
        events = await read(stage.ask(max_tokens=10))
        assert roles_of(events) == ["P", "RLD"]
        transfer = await path.opened()
        assert (transfer.request.prefill_rank, transfer.request.main_rank) == (0, 1)
        transfer.complete()
        await stage.engines["md1"].calls_made()
        await stage.quiet()
        assert ranks_of(stage, "md1") == ["1"]


def _with_ranks(stage: Stage, id_: str, ranks: int) -> Any:
    return replace(stage.pools[id_].spec, data_parallel_size=ranks)
