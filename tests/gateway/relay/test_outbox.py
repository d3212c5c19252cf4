"""What is held back at a joint is given by a timer of its own, though nothing else happens in the answer."""

import asyncio
from collections.abc import Callable

import pytest

from gateway.relay.pacing import Given, Outbox
from gateway.relay.splice_events import Phase
from gateway.relay.types import Finish, Tokens

LAST = Finish("stop", False, None, 9, None)


class Scripted:
    """Stands for the pacer: says when each piece is due."""

    def __init__(self, *due_s: float) -> None:
        self._due_s = list(due_s)

    def schedule(self, now_s: float, tokens: int, *, filling: bool) -> float:
        """Return the next time."""
        return now_s + self._due_s.pop(0)


def piece(position: int) -> Tokens:
    """One token."""
    return Tokens(position, (position,), None, "RLD", "rld1")


class Held:
    """An outbox, and what came out of it."""

    def __init__(self, *due_s: float) -> None:
        self.given: list[Given] = []
        self._came = asyncio.Event()
        self.outbox = Outbox(1.0, asyncio.get_running_loop().time, self._take)
        self.outbox._pacer = Scripted(*due_s)  # type: ignore[assignment]

    def _take(self, given: Given) -> None:
        self.given.append(given)
        self._came.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds."""
        async with asyncio.timeout(10):
            while not holds():
                self._came.clear()
                await self._came.wait()


async def test_each_piece_is_given_when_it_is_due_though_nothing_follows() -> None:
    """After the first was given the timer is set for the next, and so on to the end; the order holds."""
    held = Held(0.01, 0.03, 0.05)
    assert [held.outbox.hold_back(piece(at), Phase.CATCH_UP) for at in range(3)] == [True] * 3
    held.outbox.end(LAST)
    assert held.given == []
    await held.until(lambda: len(held.given) == 4)
    assert held.given == [piece(0), piece(1), piece(2), LAST]


async def test_what_is_due_at_once_waits_behind_what_is_held() -> None:
    """A piece that is due now is given by the caller, but never before an earlier one."""
    held = Held(0.02, 0.0)
    assert not held.outbox.hold_back(piece(0), Phase.MAIN)
    assert held.outbox.hold_back(piece(1), Phase.CATCH_UP)
    assert held.outbox.hold_back(piece(2), Phase.MAIN)
    await held.until(lambda: len(held.given) == 2)
    assert held.given == [piece(1), piece(2)]
    held.outbox.end(LAST)
    assert held.given[-1] is LAST


@pytest.mark.parametrize("drops", [True, False])
async def test_nothing_is_given_after_the_end(drops: bool) -> None:
    """Cleared or closed, the timer gives nothing any more; a cleared one holds later pieces as ever."""
    held = Held(0.0001, 0.0001)
    held.outbox.hold_back(piece(0), Phase.CATCH_UP)
    (held.outbox.clear if drops else held.outbox.close)()
    passed = asyncio.Event()
    asyncio.get_running_loop().call_later(0.005, passed.set)
    await passed.wait()
    assert held.given == []
    held.outbox.hold_back(piece(1), Phase.CATCH_UP)
    await held.until(lambda: bool(held.given))
    assert held.given[0] == (piece(1) if drops else piece(0))
    held.outbox.close()
