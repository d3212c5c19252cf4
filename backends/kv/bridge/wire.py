"""What the bridge's HTTP API carries, as JSON."""

from typing import Annotated, Literal

import msgspec

DialectName = Literal["lmcache", "lmcache-mp"]
Named = Annotated[str, msgspec.Meta(min_length=1, max_length=512)]

MAX_BODY_BYTES = 64 << 20


class TransferOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``POST /v1/transfers``: the KV of ``token_ids`` (or the chunks ``keys``) shall be in the receiving store."""

    transfer_id: Named
    dialect: DialectName
    model: Named = ""
    token_ids: list[int] | None = None
    keys: list[Named] | None = None
    chunk_tokens: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)] = 256
    salt: str | None = None
    dtype: str = "float32"
    world_size: Annotated[int, msgspec.Meta(ge=1, le=255)] = 1
    deadline_s: Annotated[float, msgspec.Meta(gt=0, le=86400)] = 600.0


class TransferLine(msgspec.Struct, frozen=True):
    """One line of a transfer's stream; the last has state ``complete`` or ``failed``."""

    state: Literal["opening", "open", "moving", "complete", "failed"]
    chunks_total: int
    chunks_done: int
    chunks_present: int
    wan_bytes: int
    error: str | None = None


class TransferItem(msgspec.Struct, frozen=True):
    """One open transfer in ``GET /v1/transfers``."""

    transfer_id: str
    progress: TransferLine
