"""Values that the bridge's scheduler and its executor exchange."""

from dataclasses import dataclass
from typing import NamedTuple


class ChunkId(NamedTuple):
    """A chunk: the dialect that its store keys are spelled in, and its base key."""

    dialect: str
    key: str


@dataclass(frozen=True, slots=True, eq=False)
class Fetch:
    """One attempt to move a chunk; compared by identity, so that a late report of an older attempt is ignored."""

    chunk: ChunkId
    size_bytes: int
    transfer_id: str


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a transfer is."""

    chunks_total: int
    chunks_done: int
    chunks_present: int
    wan_bytes: int

    @property
    def complete(self) -> bool:
        """Whether every chunk is done."""
        return self.chunks_done == self.chunks_total
