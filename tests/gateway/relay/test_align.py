"""What is dropped of the work that brings MD into line, and that it is counted."""

import asyncio

import pytest

from gateway.relay.align import MOST_JOBS, Aligner, AlignJob, DropReason
from gateway.telemetry.metrics import Metrics
from tests.fakes.script import Refuse, Script
from tests.gateway.relay.stage import Stage, finish_of, open_stage, read

SMALL = ("p1", "rld1", "md1")


async def end_at_rld(stage: Stage) -> None:
    """Let an answer end before its KV has crossed."""
    assert finish_of(await read(stage.ask(max_tokens=10))).reason == "length"


async def test_jobs_beyond_the_bound_are_dropped_with_their_transfers() -> None:
    """The job that is one too many is counted and its transfer stops; the others go on."""
    dropped: list[DropReason] = []
    aligner = Aligner(dropped.append)
    async with open_stage(ids=SMALL) as stage:
        request, rules = stage.request(), stage.service.rulebook.of("default").relay
        never = asyncio.get_running_loop().create_future()

        async def wait() -> bool:
            await never
            return False

        transfers = [asyncio.create_task(wait()) for _ in range(MOST_JOBS + 1)]
        for transfer in transfers:
            aligner.adopt(AlignJob(request, (1,), stage.pools["md1"], rules, transfer, lambda _: None))
        await asyncio.wait(transfers[-1:])
        assert (dropped, aligner.running) == (["too_many"], MOST_JOBS)
        assert transfers[-1].cancelled() and not any(transfer.done() for transfer in transfers[:-1])
        never.set_result(None)
        await aligner.drained()
        assert dropped.count("transfer") == MOST_JOBS


@pytest.mark.parametrize("step", ["transfer", "leg"])
async def test_a_step_that_fails_is_counted(step: str) -> None:
    """A transfer that fails after the answer, or an MD that refuses the extend, leaves MD without what RLD made."""
    async with open_stage(ids=SMALL) as stage:
        if step == "leg":
            stage.engines["md1"].scripts.append(Script(fault=Refuse(500, {})))
        await end_at_rld(stage)
        transfer = await stage.path.opened()
        if step == "leg":
            transfer.complete()
        else:
            transfer.fail()
        await stage.quiet()
        assert stage.dropped == [step]


async def test_an_answer_that_no_md_can_take_is_counted() -> None:
    """Without an MD the transfer stops, and that is counted."""
    async with open_stage(ids=SMALL) as stage:
        answer = stage.ask(max_tokens=10)
        stage.pools["md1"].reachable = False
        await read(answer)
        await stage.quiet()
        assert stage.dropped == ["no_instance"]
        assert stage.path.transfers[-1].state == "aborted"


async def test_nothing_is_dropped_when_all_is_well() -> None:
    """An answer that RLD ends and MD takes in counts nowhere."""
    async with open_stage(ids=SMALL) as stage:
        await end_at_rld(stage)
        (await stage.path.opened()).complete()
        await stage.quiet()
        assert stage.dropped == [] and stage.engines["md1"].calls


def test_the_metric_has_a_line_for_each_reason() -> None:
    """What was dropped is on the metrics page, by its reason."""
    metrics = Metrics()
    metrics.kv.count_aligning_dropped("too_many")
    assert 'pdd_aligning_dropped_total{reason="too_many"} 1.0' in metrics.exposition().decode()
