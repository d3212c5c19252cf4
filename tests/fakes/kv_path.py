"""A KV path whose transfers go exactly as far as the test lets them."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Literal

from backends.errors import KvWrongSize, TransferFailed
from backends.types import PathTraits, TransferPriority, TransferProgress, TransferRequest
from tests.fakes.gates import Watch

SEEN = PathTraits(can_stop=True, reports_progress=True, overlaps_prefill=True)
"""What a bridge can do."""


class FakeTransfer:
    """One transfer, driven by the test. ``state``: how it ended, or that it has not."""

    def __init__(
        self, request: TransferRequest, chunks_present: int, chunk_bytes: int, has_chunks: bool = True
    ) -> None:
        self.request = request
        self.priorities = [request.priority]
        """The classes that it had, one after the other."""
        self.chunks_total = len(request.token_ids) // request.chunk_tokens
        self.chunks_present = min(chunks_present, self.chunks_total)
        self.chunks_done = self.chunks_present
        self.state: Literal["running", "complete", "failed", "aborted"] = "running"
        self._chunk_bytes = chunk_bytes
        self._has_chunks = has_chunks
        self._steps: asyncio.Queue[TransferProgress | TransferFailed] = asyncio.Queue()

    @property
    def wan_bytes(self) -> int:
        """Bytes that this transfer moved over the link."""
        return (self.chunks_done - self.chunks_present) * self._chunk_bytes

    def progress(self, chunks: int = 1) -> None:
        """Let ``chunks`` more arrive."""
        self.chunks_done = min(self.chunks_total, self.chunks_done + chunks)
        self._steps.put_nowait(self._now("moving"))

    def complete(self) -> None:
        """Let all that is left arrive."""
        self.chunks_done = self.chunks_total
        self._steps.put_nowait(self._now("complete"))

    def see(self, chunks: int, chunk_bytes: int = 0) -> None:
        """Let the sending store show the first ``chunks``, and how large they are."""
        self._steps.put_nowait(replace(self._now("moving"), chunks_seen=chunks, chunk_bytes=chunk_bytes))

    async def taken(self) -> None:
        """Wait until the gateway has taken all that it was told so far."""
        await self._steps.join()

    def fail(self, message: str = "link lost") -> None:
        """Break the transfer."""
        self._steps.put_nowait(TransferFailed(message))

    def refuse(self, message: str) -> None:
        """Find KV of another size in the sending store."""
        self._steps.put_nowait(KvWrongSize(message))

    def _now(self, state: Literal["open", "moving", "complete"]) -> TransferProgress:
        first_seen = self._has_chunks or self.chunks_done > 0
        return TransferProgress(
            state, self.chunks_total, self.chunks_done, self.chunks_present, self.wan_bytes, first_seen
        )

    async def run(self) -> AsyncGenerator[TransferProgress, None]:
        """What the gateway reads."""
        yield self._now("open")
        while True:
            step = await self._steps.get()
            if isinstance(step, TransferFailed):
                self.state = "failed"
                raise step
            if step.state == "complete":
                self.state = "complete"
            yield step
            self._steps.task_done()
            if step.state == "complete":
                return


class FakeKvPath:
    """Implements ``KvPath`` in process. ``is_instant``: each transfer is complete as soon as it is opened.

    ``has_chunks`` False: the sending store does not show any.
    """

    def __init__(
        self,
        *,
        is_instant: bool = False,
        chunks_present: int = 0,
        chunk_bytes: int = 1000,
        traits: PathTraits = SEEN,
        has_chunks: bool = True,
    ) -> None:
        self.traits = traits
        self.has_chunks = has_chunks
        self.is_instant = is_instant
        self.chunks_present = chunks_present
        self.chunk_bytes = chunk_bytes
        self.transfers: list[FakeTransfer] = []
        self.is_closed = False
        self.watch = Watch()

    @property
    def running(self) -> int:
        """Transfers that have not ended."""
        return sum(transfer.state == "running" for transfer in self.transfers)

    async def opened(self, count: int = 1) -> FakeTransfer:
        """Wait until ``count`` transfers were opened in all; return the last of them."""
        await self.watch.until(lambda: len(self.transfers) >= count)
        return self.transfers[count - 1]

    async def idle(self) -> None:
        """Wait until no transfer is running."""
        await self.watch.until(lambda: not self.running)

    async def transfer(self, request: TransferRequest) -> AsyncGenerator[TransferProgress, None]:
        """Open a transfer that the test drives."""
        transfer = FakeTransfer(request, self.chunks_present, self.chunk_bytes, self.has_chunks)
        self.transfers.append(transfer)
        self.watch.changed()
        if self.is_instant:
            transfer.complete()
        steps = transfer.run()
        try:
            async for step in steps:
                yield step
        finally:
            await steps.aclose()
            if transfer.state == "running":
                transfer.state = "aborted"
            self.watch.changed()

    def prioritise(self, transfer_id: str, priority: TransferPriority) -> None:
        """Note the class."""
        for transfer in self.transfers:
            if transfer.request.transfer_id == transfer_id and transfer.state == "running":
                transfer.priorities.append(priority)
                self.watch.changed()

    async def aclose(self) -> None:
        """Note that the gateway let go."""
        self.is_closed = True
