"""The demo's way out."""

import asyncio

import pytest

from gateway.demo.command import unless


async def test_a_stop_gives_up_what_runs_and_waits_for_its_end() -> None:
    """Ctrl-C in the middle of the scenarios ends them before anything that they use; nothing is raised."""
    stop, begun = asyncio.Event(), asyncio.Event()
    course: list[str] = []

    async def work() -> int:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            course.append("ended")
        return 0

    asyncio.get_running_loop().call_soon(stop.set)
    assert await unless(stop, work()) is None
    assert begun.is_set() and course == ["ended"]


async def test_without_a_stop_the_outcome_counts() -> None:
    """What ends by itself is returned, and what it raises is raised."""

    async def fail() -> int:
        raise ValueError("odd")

    async def end() -> int:
        return 3

    assert await unless(asyncio.Event(), end()) == 3
    with pytest.raises(ValueError, match="odd"):
        await unless(asyncio.Event(), fail())
