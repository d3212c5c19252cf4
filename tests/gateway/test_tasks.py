"""Background work that is done again and again."""

import asyncio

import pytest

from gateway.tasks import end_task, run_every


async def test_work_is_done_each_interval() -> None:
    """The work is done again when the interval after its last end is over."""
    done = asyncio.Semaphore(0)

    async def work() -> None:
        done.release()

    task = asyncio.create_task(run_every(0.001, work))
    async with asyncio.timeout(5):
        for _ in range(3):
            await done.acquire()
    await end_task(task)
    assert task.cancelled()


async def test_due_work_does_not_wait() -> None:
    """Work that is due is done at once, and no more often than it was due."""
    due, done, count = asyncio.Event(), asyncio.Event(), 0

    async def work() -> None:
        nonlocal count
        count += 1
        done.set()

    task = asyncio.create_task(run_every(3600.0, work, due))
    for times in (1, 2):
        due.set()
        async with asyncio.timeout(5):
            await done.wait()
        done.clear()
        assert count == times and not due.is_set()
    await end_task(task)


async def test_failed_work_ends_it() -> None:
    """An error of the work is raised."""

    async def work() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await run_every(0.001, work)
