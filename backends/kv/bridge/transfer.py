"""One open transfer, as its watcher sees it."""

import asyncio
from dataclasses import dataclass, field
from typing import Literal

from backends.kv.bridge.types import ChunkId, TransferStanding
from backends.types import TransferPriority

BridgeTransferState = Literal["opening", "open", "moving", "complete", "failed"]

_ENDS = frozenset[BridgeTransferState]({"complete", "failed"})


@dataclass(slots=True, eq=False)
class BridgeTransfer:
    """A transfer's state; ``changed`` is set at each change, and cleared by the one who watches."""

    id: str
    chunks: list[ChunkId]
    standing: TransferStanding
    priority: TransferPriority = "waiting"
    tenant: str = ""
    weight: float = 1.0
    state: BridgeTransferState = "opening"
    error: str | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    """Asks the receiving store, before the first chunk moves and after the last one has."""
    deadline: asyncio.TimerHandle | None = None
    chunk_bytes: int = 0
    """Size of the newest chunk that the sending store was seen to hold; 0: none was."""
    checks: int = 0
    """How often the receiving store was asked whether it holds everything."""

    @property
    def ended(self) -> bool:
        """Whether nothing will change any more."""
        return self.state in _ENDS

    def advance(
        self, state: BridgeTransferState, standing: TransferStanding | None = None, error: str | None = None
    ) -> None:
        """Go to ``state`` and wake the watcher; nothing once the transfer has ended."""
        if self.ended:
            return
        if standing is not None:
            self.standing = standing
        self.error = error
        if state in _ENDS and self.deadline is not None:
            self.deadline.cancel()
        self.state = state
        self.changed.set()
