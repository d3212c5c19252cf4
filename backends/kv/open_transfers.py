"""What a KV path that cannot see its link knows of it: its own open transfers."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from backends.types import LinkState, TransferRequest


@dataclass(slots=True, eq=False)
class OpenTransfer:
    """One transfer's bytes that may still have to cross."""

    left_bytes: int


class OpenTransfers:
    """The transfers of one path."""

    def __init__(self) -> None:
        self._open: set[OpenTransfer] = set()

    @contextmanager
    def counted(self, request: TransferRequest) -> Iterator[OpenTransfer]:
        """Count a transfer as open until the block ends."""
        chunks = len(request.token_ids) // request.chunk_tokens
        entry = OpenTransfer(chunks * request.chunk_tokens * request.kv_bytes_per_token)
        self._open.add(entry)
        try:
            yield entry
        finally:
            self._open.discard(entry)

    def state(self) -> LinkState:
        """The link as far as it is known: nothing is measured, and it is taken to be up."""
        queued = sum(entry.left_bytes for entry in self._open)
        return LinkState(0.0, queued, 0.0, up=True, wan_bytes_total=0, open_transfers=len(self._open))
