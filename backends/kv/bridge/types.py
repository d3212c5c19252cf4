"""Values that the parts of the bridge exchange, and what its HTTP API carries."""

from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import msgspec

from backends.kv.bridge.reshard import Regrouping
from backends.types import FoundKey, KvShape, StoreSide, TransferPriority


@dataclass(frozen=True, slots=True)
class Made:
    """What is made of a chunk on its way: all keys that are read, those that are written, and how.

    ``made``: for each of ``written`` the number of its shard among those that ``regrouping`` makes.
    """

    read: tuple[str, ...]
    written: tuple[str, ...]
    made: tuple[int, ...]
    regrouping: Regrouping


class ChunkId(NamedTuple):
    """What crosses as one: the dialect that its store keys are spelled in, and its first base key.

    ``size_bytes``: what each value that is read must have, None where that is not known. ``made`` None: it is stored as
    it was read.
    """

    dialect: str
    key: str
    size_bytes: int | None = None
    made: Made | None = None

    @property
    def written_bytes(self) -> int | None:
        """What each value in the receiving store must have; None where that is not known."""
        return self.made.regrouping.dest_bytes if self.made is not None else self.size_bytes

    @property
    def read_keys(self) -> tuple[str, ...]:
        """Base keys in the sending store."""
        return self.made.read if self.made is not None else (self.key,)

    @property
    def written_keys(self) -> tuple[str, ...]:
        """Base keys in the receiving store."""
        return self.made.written if self.made is not None else (self.key,)


@dataclass(frozen=True, slots=True, eq=False)
class ChunkFetch:
    """One attempt to move a chunk; compared by identity, so that a late report of an older attempt is ignored."""

    chunk: ChunkId
    size_bytes: int
    transfer_id: str


@dataclass(frozen=True, slots=True)
class TransferStanding:
    """How far a transfer is."""

    chunks_total: int
    chunks_done: int
    chunks_present: int
    wan_bytes: int
    chunks_seen: int = 0
    """Chunks, from the first on, that either store was seen to hold."""

    @property
    def first_seen(self) -> bool:
        """Whether either store was seen to hold the first chunk, if there is one."""
        return self.chunks_seen > 0 or self.chunks_total == 0

    @property
    def complete(self) -> bool:
        """Whether every chunk is done."""
        return self.chunks_done == self.chunks_total


@dataclass(frozen=True, slots=True)
class BridgeLimits:
    """Bounds of one bridge.

    ``memory_bytes`` bounds the chunks held at once, and is the largest chunk that is taken. ``silence_s``: a link that
    owes an answer and is silent for this long is taken for broken. ``rate_cap_bytes_per_s`` None: only the link's.
    """

    connections: int = 4
    memory_bytes: int = 256 << 20
    small_bytes: int = 16 << 20
    large_share: float = 0.125
    silence_s: float = 3.0
    transfers: int = 4096
    rate_cap_bytes_per_s: float | None = None


@dataclass(slots=True)
class BridgeCounts:
    """Counts since the start."""

    moved: int = 0
    present: int = 0
    refused: int = 0
    retried: int = 0
    moved_bytes: int = 0
    complete: int = 0
    failed: int = 0
    stopped: int = 0


WRONG_SIZE = "wrong size: "
"""How the reason begins of a transfer whose chunks are not as large as they must be."""
DialectName = Literal["lmcache", "lmcache-mp"]
_Ranks = Annotated[int, msgspec.Meta(ge=1, le=255)]
Named = Annotated[str, msgspec.Meta(min_length=1, max_length=512)]

MAX_BODY_BYTES = 16 << 20
MAX_CHUNKS = 32768
"""Values that one order may mean, over all ranks and groups: eight ranks' KV of a million tokens in chunks of 256."""


class TransferShare(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One of ``count`` shares of all chunks: each chunk is in the same one for every transfer."""

    number: Annotated[int, msgspec.Meta(ge=0, lt=256)]
    count: Annotated[int, msgspec.Meta(ge=1, le=256)]


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
    world_size: _Ranks = 1
    dest_world_size: _Ranks | None = None
    """Ranks of the receiving engines, None: as many. Where they differ ``shape`` says how their KV is regrouped."""
    shape: KvShape | None = None
    chunk_bytes: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """What the shards of a chunk have together in the sending store; others are refused."""
    group_windows: Annotated[list[Annotated[int, msgspec.Meta(ge=1)] | None], msgspec.Meta(max_length=16)] | None = None
    """An LMCache server's object groups by their numbers: how many of the last chunks each needs, None: all.

    None: groups are not kept apart.
    """
    part: TransferShare | None = None
    """Which share of the chunks is meant, where several bridges move one transfer together; None: all."""
    hash_seed: Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)] | None = None
    deadline_s: Annotated[float, msgspec.Meta(gt=0, le=86400)] = 600.0
    priority: TransferPriority = "waiting"
    tenant: Annotated[str, msgspec.Meta(max_length=64)] = ""
    """Whose share of the link it takes; any name will do that is the same each time."""
    weight: Annotated[float, msgspec.Meta(ge=0.001, le=1000)] = 1.0
    """Bytes that this tenant gets while others, of weight 1, get one."""


class TransferChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``PATCH /v1/transfers/{id}``: who waits for the transfer from now on."""

    priority: TransferPriority


class TransferLine(msgspec.Struct, frozen=True):
    """One line of a transfer's stream; the last has state ``complete`` or ``failed``."""

    state: Literal["opening", "open", "moving", "complete", "failed"]
    chunks_total: int
    chunks_done: int
    chunks_present: int
    wan_bytes: int
    error: str | None = None
    first_seen: bool = True
    chunk_bytes: int = 0
    chunks_seen: int | None = None


class TransferItem(msgspec.Struct, frozen=True):
    """One open transfer in ``GET /v1/transfers``."""

    transfer_id: str
    progress: TransferLine
    priority: TransferPriority
    tenant: str = ""


class KeySearch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``POST /v1/keys``: which keys of a store have one of ``markers`` in their name?"""

    side: StoreSide
    markers: Annotated[list[Named], msgspec.Meta(min_length=1, max_length=256)]


class FoundKeys(msgspec.Struct, frozen=True):
    """The answer. ``is_whole`` False: there are more."""

    keys: list[FoundKey]
    is_whole: bool = True
