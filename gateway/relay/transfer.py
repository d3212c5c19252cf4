"""The KV's way to the main region, for one answer."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace

from backends.base import KvPath
from backends.errors import KvWrongSize, TransferFailed
from backends.types import TransferPriority, TransferProgress, TransferRequest
from gateway.relay.answer_plan import AnswerPlan
from gateway.relay.record import Record
from gateway.relay.splice_events import Event, KvFailed, KvReady, KvUnseen


class KvTransfer:
    """Opens the transfer, again after a failure under a new id, and tells ``feed`` how it ended.

    It is given up when its first chunk is in neither store some time after P's end. ``aim`` names in a request the
    engines between which KV shall move just now, for paths on which they move it themselves. ``is_prefilled``: P has
    ended.
    """

    def __init__(
        self,
        plan: AnswerPlan,
        record: Record,
        feed: Callable[[Event], None],
        aim: Callable[[TransferRequest], TransferRequest],
    ) -> None:
        self._path = plan.path
        self._request = plan.transfer
        self._priority = plan.transfer.priority
        self._first_chunk_s = plan.rules.kv_first_chunk_s
        self._outcome = plan.outcome
        self._record = record
        self._feed = feed
        self._aim = aim
        self.is_prefilled = False
        self._awaits_prefill = False
        self._opened = 0
        self._moving_id: str | None = None
        self._task: asyncio.Task[bool] | None = None
        self._first_seen: bool | None = None
        """None: the path has not told yet."""
        self._unseen_tokens = 0
        """Of the prompt's full chunks, those that neither store was seen to hold; 0 where the path cannot tell."""
        self._came_on = asyncio.Event()
        self._bound: asyncio.Timeout | None = None
        """Of the transfer that runs."""
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Open it, on some paths only once P has ended."""
        if self._path is None:
            return
        self._awaits_prefill = not (self.is_prefilled or self._path.traits.overlaps_prefill)
        if not self._awaits_prefill:
            self._opened += 1
            self._record.transfer_started()
            self._first_seen = None
            self._is_sized = False
            self._task = asyncio.create_task(self._move(self._path))
            if self.is_prefilled:
                self._await_first_chunk()

    def prefilled(self) -> None:
        """P has ended, or will not: what waits for it begins."""
        self.is_prefilled = True
        if self._awaits_prefill:
            self.start()
        elif self._is_moving:
            self._await_first_chunk()

    async def stored(self, spare_tokens: int, within_s: float) -> None:
        """Wait until all KV that P made, but for so many tokens, was seen in a store; no longer than ``within_s``.

        Nothing is waited for where the path cannot tell, or the link is down.
        """
        try:
            async with asyncio.timeout(within_s):
                while self._is_moving and self._unseen_tokens > spare_tokens and self._outcome.is_link_up():
                    self._came_on.clear()
                    await self._came_on.wait()
        except TimeoutError:
            self._record.note("kv_not_stored", tokens=self._unseen_tokens)

    @property
    def _is_moving(self) -> bool:
        return self._task is not None and not self._task.done()

    def prioritise(self, priority: TransferPriority) -> None:
        """Say who waits for the KV from now on."""
        if priority == self._priority:
            return
        self._priority = priority
        if self._path is not None and self._moving_id is not None:
            self._path.prioritise(self._moving_id, priority)

    def stop(self, why: str) -> None:
        """Stop it if it still runs."""
        self._awaits_prefill, self._moving_id = False, None
        if self._task is not None and self._is_moving:
            self._task.cancel()
            self._record.note("transfer_stopped", why=why)

    def give_away(self) -> asyncio.Task[bool] | None:
        """Leave it to somebody else, who learns from the task whether all KV has crossed; None: none was started.

        No client waits for it any more.
        """
        self.prioritise("later")
        task, self._task = self._task, None
        self._came_on.set()
        return task

    async def aclose(self) -> None:
        """Stop it, and wait until its connection is closed."""
        if self._task is not None:
            self.stop("closed")
            await asyncio.gather(self._task, return_exceptions=True)

    async def _move(self, path: KvPath) -> bool:
        self._moving_id = f"{self._request.transfer_id}-{self._opened}"
        request = replace(self._request, transfer_id=self._moving_id, priority=self._priority)
        if not path.traits.overlaps_prefill:
            request = self._aim(request)
        try:
            async with asyncio.timeout(None) as self._bound, aclosing(path.transfer(request)) as stream:
                async for progress in stream:
                    self._note(progress)
        except KvWrongSize as error:
            self._outcome.odd_size(str(error))
            self._record.note("transfer_failed", why=str(error))
            self._feed(KvUnseen())
            return False
        except TransferFailed as error:
            self._record.note("transfer_failed", why=str(error))
            self._feed(KvFailed())
            return False
        except TimeoutError:
            if self._bound is None or not self._bound.expired():
                raise
            self._record.note("transfer_failed", why=self._outcome.unseen(self._first_chunk_s))
            self._feed(KvUnseen())
            return False
        finally:
            self._unseen_tokens = 0
            self._came_on.set()
            self._bound = None
            if self._timer is not None:
                self._timer.cancel()
        self._feed(KvReady())
        return True

    def _note(self, progress: TransferProgress) -> None:
        self._first_seen = self._first_seen or progress.first_seen
        if progress.chunks_seen is not None:
            self._unseen_tokens = (progress.chunks_total - progress.chunks_seen) * self._request.chunk_tokens
            self._came_on.set()
        self._record.transfer(progress)
        if progress.chunk_bytes and not self._is_sized:
            self._is_sized = True
            why = self._outcome.refuse_size(progress.chunk_bytes)
            if why is not None:
                raise KvWrongSize(why)

    def _await_first_chunk(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._first_chunk_s, self._judge_first_chunk)

    def _judge_first_chunk(self) -> None:
        if self._bound is None or self._first_seen:
            return
        if self._first_seen is None or not self._outcome.is_link_up():  # nobody could look
            self._await_first_chunk()
        else:
            self._bound.reschedule(asyncio.get_running_loop().time())
