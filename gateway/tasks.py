"""Background tasks, and how they are ended."""

import asyncio
import logging
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any

_log = logging.getLogger(__name__)


class TaskSet:
    """Runs coroutines by name. A task that was ended early is still waited for by ``aclose``."""

    def __init__(self) -> None:
        self._by_name: dict[str, asyncio.Task[None]] = {}
        self._running: set[asyncio.Task[None]] = set()

    def start(self, name: str, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Run ``work`` in place of an earlier task of that name."""
        self.end(name)
        task = self._by_name[name] = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._settle)
        return task

    def end(self, name: str) -> None:
        """Cancel the task of that name, if there is one."""
        task = self._by_name.pop(name, None)
        if task is not None:
            task.cancel()

    def _settle(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("a background task failed", exc_info=task.exception())

    async def aclose(self) -> None:
        """Cancel all tasks and wait for their end."""
        for name in list(self._by_name):
            self.end(name)
        await asyncio.gather(*self._running, return_exceptions=True)


def start_now(work: Awaitable[None]) -> asyncio.Task[None] | None:
    """Do ``work`` in this turn of the loop, up to where it first waits; the task does the rest. None: there is none.

    What it raises before that comes through. (Python 3.12 has tasks that start so.)
    """
    steps = work.__await__()
    try:
        awaited = next(steps)
    except StopIteration:
        return None
    return asyncio.create_task(_go_on(steps, awaited))


async def _go_on(steps: Generator[Any, Any, None], awaited: Any) -> None:
    await _wait_on(steps, awaited)


@types.coroutine
def _wait_on(steps: Generator[Any, Any, None], awaited: Any) -> Generator[Any, Any, None]:
    try:
        while True:
            try:
                told = yield awaited
            except BaseException as error:  # a cancellation, too, is for whoever waits
                awaited = steps.throw(error)
            else:
                awaited = steps.send(told)
    except StopIteration:
        return


async def end_task(task: "asyncio.Task[None] | None") -> None:
    """Cancel a task, if there is one, and wait for its end, however it ends."""
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def run_every(interval_s: float, work: Callable[[], Awaitable[object]], due: asyncio.Event | None = None) -> None:
    """Do ``work`` for ever: ``interval_s`` after its last end, or as soon as it is ``due``."""
    due = due or asyncio.Event()
    while True:
        timer = asyncio.get_running_loop().call_later(interval_s, due.set)
        try:
            await due.wait()
        finally:
            timer.cancel()
        due.clear()
        await work()
