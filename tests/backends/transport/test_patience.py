"""Timeouts of other processes' answers, on a loop whose time the test moves."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from backends.transport.patience import SLICES, PeerTimeout

TIMEOUT_S = 80.0


class MovedLoop(asyncio.SelectorEventLoop):
    """A loop whose clock the test moves; with nothing else to do, it moves on to the next timer by itself."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        super().__init__()

    def time(self) -> float:
        """Return the moved time."""
        return self.now_s

    def hold(self, seconds: float) -> None:
        """Work, for so long, in one turn."""
        self.now_s += seconds


async def answer(turns: int) -> str:
    """Come after so many turns of the loop, as an answer does from socket to task."""
    for _ in range(turns):
        await asyncio.sleep(0)
    return "answered"


async def held(make: Callable[[float], AbstractAsyncContextManager[Any]], turns: int) -> str:
    """Ask, hold the loop for longer than the timeout, and read what has come meanwhile."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, MovedLoop)
    loop.call_soon(loop.hold, 10 * TIMEOUT_S)
    async with make(TIMEOUT_S):
        return await answer(turns)


def run(work: Any) -> Any:
    """Run on a loop of its own."""
    with asyncio.Runner(loop_factory=MovedLoop) as runner:
        return runner.run(work)


def test_an_answer_that_came_while_the_loop_was_held_is_heard() -> None:
    """Ten timeouts pass in one turn: the usual timeout gives the peer up, this one still reads the answer."""
    assert run(held(PeerTimeout, SLICES - 2)) == "answered"
    with pytest.raises(TimeoutError):
        run(held(asyncio.timeout, SLICES - 2))


def test_a_silent_peer_is_given_up_in_time() -> None:
    """A loop that is free gives it the whole time and no more."""

    async def ask() -> list[float]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, MovedLoop)
        began_s, passed = loop.now_s, 0
        asking = asyncio.create_task(silent())
        while not asking.done():
            loop.hold(TIMEOUT_S / SLICES)
            passed += 1
            for _ in range(3):
                await asyncio.sleep(0)
        with pytest.raises(TimeoutError):
            await asking
        return [loop.now_s - began_s, passed]

    async def silent() -> None:
        async with PeerTimeout(TIMEOUT_S):
            await asyncio.Event().wait()

    waited_s, passed = run(ask())
    assert TIMEOUT_S <= waited_s <= TIMEOUT_S * (1 + 2 / SLICES)
    assert SLICES <= passed <= SLICES + 2


def test_what_the_block_raises_comes_through_and_no_timer_stays() -> None:
    """Errors and cancellations of others are not taken for a timeout."""

    async def fail() -> None:
        async with PeerTimeout(TIMEOUT_S):
            raise LookupError

    async def cancelled() -> None:
        async with PeerTimeout(TIMEOUT_S):
            asyncio.current_task().cancel()  # type: ignore[union-attr]
            await asyncio.Event().wait()

    with pytest.raises(LookupError):
        run(fail())
    with pytest.raises(asyncio.CancelledError):
        run(cancelled())
