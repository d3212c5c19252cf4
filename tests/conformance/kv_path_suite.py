"""What every implementation of ``KvPath`` must do. Subclass ``KvPathSuite`` with a fixture ``case``.

    class TestMyPath(KvPathSuite):
        @pytest.fixture
        async def case(self) -> AsyncIterator[KvPathCase]: ...

The far side of ``case`` may be real: all that is asked of it is that it can be made to wait for KV.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import get_args

import pytest

from backends.errors import TransferFailed
from backends.types import TransferPriority, TransferProgress, TransferRequest
from gateway.fleet.links import MeasuredPath

PATIENCE_S = 15.0


@dataclass(frozen=True, slots=True)
class KvPathCase:
    """A path to test. ``gone``: one whose far side does not answer.

    ``ask(chunks)`` makes a request for KV that was never asked for before and is there, unless ``withhold()`` was
    called: then it is there after ``provide()``. ``idle()`` waits until the far side works for no transfer.
    """

    path: MeasuredPath
    gone: MeasuredPath
    ask: Callable[[int], Awaitable[TransferRequest]]
    withhold: Callable[[], None]
    provide: Callable[[], Awaitable[None]]
    idle: Callable[[], Awaitable[None]]


async def read(path: MeasuredPath, request: TransferRequest) -> list[TransferProgress]:
    """Run a transfer to its end."""
    async with asyncio.timeout(PATIENCE_S), aclosing(path.transfer(request)) as stream:
        return [progress async for progress in stream]


class KvPathSuite:
    """The suite."""

    @pytest.fixture
    async def case(self) -> KvPathCase:
        """The path under test."""
        raise NotImplementedError

    @pytest.mark.parametrize("chunks", [1, 2, 9])
    async def test_it_completes_with_every_chunk(self, case: KvPathCase, chunks: int) -> None:
        """Progress begins with what there is to do, never goes back, and ends once, complete."""
        seen = await read(case.path, await case.ask(chunks))
        assert (seen[0].state, seen[0].chunks_done) in (("open", 0), ("open", seen[0].chunks_present))
        assert [one.state for one in seen].count("complete") == 1
        assert (seen[-1].state, seen[-1].chunks_done) == ("complete", chunks)
        assert {one.chunks_total for one in seen} == {chunks}
        done = [one.chunks_done for one in seen]
        assert done == sorted(done)
        crossed = [one.wan_bytes for one in seen]
        assert crossed == sorted(crossed)

    async def test_less_than_a_chunk_is_complete_at_once(self, case: KvPathCase) -> None:
        """A prompt without a full chunk needs nothing, even while no KV is there."""
        request = await case.ask(1)
        case.withhold()
        short = replace(request, token_ids=request.token_ids[: request.chunk_tokens - 1])
        assert (await read(case.path, short))[-1].state == "complete"

    async def test_it_waits_for_kv_and_then_completes(self, case: KvPathCase) -> None:
        """While the KV is not there the transfer is open, and says so once; when it comes it completes."""
        case.withhold()
        request = await case.ask(2)
        async with asyncio.timeout(PATIENCE_S), aclosing(case.path.transfer(request)) as stream:
            assert (await anext(stream)).state == "open"
            rest = asyncio.ensure_future(anext(stream))
            state = await case.path.link()
            assert state.open_transfers in (None, 1)
            await case.provide()
            seen = [await rest, *[progress async for progress in stream]]
        assert [one.state for one in seen].count("complete") == 1 and seen[-1].state == "complete"

    async def test_closing_early_ends_it(self, case: KvPathCase) -> None:
        """A transfer that is closed raises nothing; one that can be stopped leaves the far side without work."""
        case.withhold()
        request = await case.ask(3)
        async with asyncio.timeout(PATIENCE_S):
            async with aclosing(case.path.transfer(request)) as stream:
                await anext(stream)
                waiting = asyncio.ensure_future(anext(stream))
                await asyncio.sleep(0)
                waiting.cancel()
                await asyncio.gather(waiting, return_exceptions=True)
            if not case.path.traits.can_stop:
                await case.provide()
            await case.idle()
        assert (await case.path.link()).open_transfers in (None, 0)

    async def test_who_waits_may_change_at_any_time(self, case: KvPathCase) -> None:
        """Any class, before, while and after a transfer runs, lets it complete."""
        request = replace(await case.ask(4), priority="relay")
        case.path.prioritise(request.transfer_id, "later")
        async with asyncio.timeout(PATIENCE_S), aclosing(case.path.transfer(request)) as stream:
            seen = [await anext(stream)]
            for priority in get_args(TransferPriority):
                case.path.prioritise(request.transfer_id, priority)
            seen += [progress async for progress in stream]
        assert seen[-1].state == "complete"
        case.path.prioritise(request.transfer_id, "waiting")
        await case.idle()

    async def test_the_deadline_is_kept(self, case: KvPathCase) -> None:
        """KV that does not come in time fails the transfer."""
        case.withhold()
        request = replace(await case.ask(2), deadline_s=0.1)
        with pytest.raises(TransferFailed):
            await read(case.path, request)
        await case.provide()

    async def test_nobody_there_is_a_failed_transfer(self, case: KvPathCase) -> None:
        """A far side that is away raises TransferFailed and nothing else."""
        with pytest.raises(TransferFailed):
            await read(case.gone, await case.ask(2))

    async def test_transfers_run_side_by_side(self, case: KvPathCase) -> None:
        """Several transfers at once all complete."""
        requests = [await case.ask(chunks) for chunks in (1, 4, 2)]
        for seen in await asyncio.gather(*(read(case.path, request) for request in requests)):
            assert seen[-1].state == "complete"

    async def test_what_it_cannot_tell_it_does_not_tell(self, case: KvPathCase) -> None:
        """A path without progress says that a transfer is open and that it is complete, and nothing between."""
        seen = await read(case.path, await case.ask(9))
        if not case.path.traits.reports_progress:
            assert [one.state for one in seen] == ["open", "complete"]
        if case.path.traits.lends:
            assert not case.path.traits.overlaps_prefill
