"""A timeout for what another process is to answer, that a busy event loop of ours does not use up."""

import asyncio
from types import TracebackType
from typing import Self

SLICES = 8


class PeerTimeout:
    """Ends its block with TimeoutError, as asyncio.timeout does, once the other end had ``timeout_s`` to be heard.

    While our own work holds the loop nobody is heard, and when it is free again a timer is due before an answer that
    came meanwhile has been read: a process with much to do would take Redis, its engines and its bridges for lost. So
    the time passes in slices, and each has to pass in a turn of the loop of its own.
    """

    __slots__ = ("_bound", "_left", "_slice_s", "_timer")

    def __init__(self, timeout_s: float) -> None:
        self._slice_s = timeout_s / SLICES
        self._left = SLICES
        self._bound = asyncio.timeout(None)
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        await self._bound.__aenter__()
        self._arm()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._bound.__aexit__(kind, error, trace)

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._slice_s, self._pass_slice)

    def _pass_slice(self) -> None:
        self._left -= 1
        if self._left:
            self._arm()
        else:
            self._bound.reschedule(asyncio.get_running_loop().time())
