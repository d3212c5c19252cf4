"""One transfer over several bridges between the same two stores, each of which moves its share of the chunks."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from backends.kv.bridge.client import BridgePath
from backends.types import (
    FoundKey,
    LinkState,
    PathTraits,
    StoreSide,
    TransferPriority,
    TransferProgress,
    TransferRequest,
)


class FannedPath:
    """A ``KvPath`` over ``parts``, made with ``BridgePath(part=(number, len(parts)))``."""

    traits: PathTraits = BridgePath.traits

    def __init__(self, parts: Sequence[BridgePath]) -> None:
        self._parts = parts

    async def transfer(self, request: TransferRequest) -> AsyncGenerator[TransferProgress, None]:
        """See ``KvPath``. Where one part fails, the others are stopped."""
        latest: list[TransferProgress | None] = [None] * len(self._parts)
        changed = asyncio.Event()

        async def follow(number: int) -> None:
            try:
                async with aclosing(self._parts[number].transfer(request)) as stream:
                    async for progress in stream:
                        latest[number] = progress
                        changed.set()
            finally:
                changed.set()

        tasks = [asyncio.create_task(follow(number)) for number in range(len(self._parts))]
        try:
            while True:
                await changed.wait()
                changed.clear()
                for task in tasks:
                    if task.done():
                        task.result()
                told = [progress for progress in latest if progress is not None]
                if len(told) == len(tasks):
                    merged = _merge(told)
                    yield merged
                    if merged.state == "complete":
                        return
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def prioritise(self, transfer_id: str, priority: TransferPriority) -> None:
        """See ``KvPath``."""
        for part in self._parts:
            part.prioritise(transfer_id, priority)

    async def link(self) -> LinkState:
        """What all have measured together: it is up where all are. Raises EngineUnavailable or EngineBroken."""
        states = await asyncio.gather(*(part.link() for part in self._parts))
        return LinkState(
            rate_bytes_per_s=sum(state.rate_bytes_per_s for state in states),
            queued_bytes=sum(state.queued_bytes for state in states),
            rtt_s=max(state.rtt_s for state in states),
            up=all(state.up for state in states),
            wan_bytes_total=sum(state.wan_bytes_total for state in states),
            open_transfers=max((state.open_transfers or 0 for state in states), default=0),
            queued_later_bytes=sum(state.queued_later_bytes for state in states),
            later_transfers=max(state.later_transfers for state in states),
        )

    async def find_keys(self, side: StoreSide, markers: Sequence[str]) -> list[FoundKey]:
        """See ``ShowsKeys``: all have the same stores."""
        return await self._parts[0].find_keys(side, markers)

    async def aclose(self) -> None:
        """Close all connections, which stops the transfers that run."""
        for part in self._parts:
            await part.aclose()


def _merge(parts: Sequence[TransferProgress]) -> TransferProgress:
    states = {part.state for part in parts}
    return TransferProgress(
        state=states.pop() if len(states) == 1 else "moving",
        chunks_total=sum(part.chunks_total for part in parts),
        chunks_done=sum(part.chunks_done for part in parts),
        chunks_present=sum(part.chunks_present for part in parts),
        wan_bytes=sum(part.wan_bytes for part in parts),
        first_seen=all(part.first_seen for part in parts),
        chunk_bytes=max(part.chunk_bytes for part in parts),
    )
