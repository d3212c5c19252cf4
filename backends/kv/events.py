"""KV cache events of vLLM-like engines, as they are on the wire. No I/O here (see ``backends.kv.subscriber``).

A message's payload is a msgpack batch of time, events and rank. Batches and events are maps in one engine version and
arrays in another; both are read, and fields that are not known are ignored. Whatever arrives, only BadFrame is raised.
"""

from array import array
from dataclasses import dataclass
from math import isfinite
from typing import Any

import msgspec

EngineBlockHash = int | bytes

MAX_FRAME_BYTES = 64 << 20
MAX_RANK = 4096
_BATCH_FIELDS = ("ts", "events", "data_parallel_rank")
_EVENTS_PLACE = _BATCH_FIELDS.index("events")
_AT_ONCE_BYTES = 64 << 10
_PARTS = msgspec.msgpack.Decoder(dict[str, msgspec.Raw] | list[msgspec.Raw])
_ENTRIES = msgspec.msgpack.Decoder(list[msgspec.Raw])
_STORED_FIELDS = (
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
    "kv_cache_spec_sliding_window",
    "locality",
)
_REMOVED_FIELDS = ("block_hashes", "medium", "group_idx", "locality")
_CLEARED_FIELDS = ("medium",)


class BadFrame(Exception):
    """A message that is not the agreed format; ``str()`` holds no content of it."""


@dataclass(frozen=True, slots=True)
class BlocksStored:
    """A run of consecutive blocks became resident; ``token_ids`` holds ``block_size`` ids for each hash."""

    hashes: tuple[EngineBlockHash, ...]
    parent: EngineBlockHash | None
    token_ids: "array[int]"
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[Any] | None = None
    group: int | None = None
    kind: str | None = None
    remote: bool = False


@dataclass(frozen=True, slots=True)
class BlocksRemoved:
    """Blocks left a tier."""

    hashes: tuple[EngineBlockHash, ...]
    medium: str | None = None
    group: int | None = None
    remote: bool = False


@dataclass(frozen=True, slots=True)
class BlocksCleared:
    """Every block of a rank is gone; with ``medium``, every block of that tier."""

    medium: str | None = None


@dataclass(frozen=True, slots=True)
class EventBatch:
    """One decoded message. ``skipped`` counts events of types that are not known here."""

    rank: int
    events: tuple[BlocksStored | BlocksRemoved | BlocksCleared, ...]
    skipped: int


def decode_batch(payload: bytes) -> EventBatch:
    """Decode a payload. Raises BadFrame."""
    if len(payload) > MAX_FRAME_BYTES:
        raise BadFrame("payload too large")
    try:
        fields = _name_fields(_unpack(payload), _BATCH_FIELDS)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise BadFrame("payload is not msgpack") from error
    time_s, events, rank = (fields.get(name) for name in _BATCH_FIELDS)
    if not isinstance(time_s, int | float) or not isfinite(time_s) or not isinstance(events, list):
        raise BadFrame("batch lacks its time or events")
    rank = _optional_int(rank) or 0
    if not 0 <= rank < MAX_RANK:
        raise BadFrame("rank out of range")
    known = [event for event in map(_decode_event, events) if event is not None]
    return EventBatch(rank, tuple(known), len(events) - len(known))


def _unpack(payload: bytes) -> object:
    """Return what a payload holds; one with many events event by event, so that other threads may run in between."""
    if len(payload) <= _AT_ONCE_BYTES:
        return msgspec.msgpack.decode(payload)
    try:
        parts: Any = _PARTS.decode(payload)
        entries = parts.items() if isinstance(parts, dict) else enumerate(parts)
        for name, part in list(entries):
            parts[name] = _unpack_list(part) if name in ("events", _EVENTS_PLACE) else msgspec.msgpack.decode(part)
        return parts
    except msgspec.ValidationError:
        return msgspec.msgpack.decode(payload)


def _unpack_list(packed: msgspec.Raw) -> object:
    return [msgspec.msgpack.decode(entry) for entry in _ENTRIES.decode(packed)]


def _decode_event(event: object) -> BlocksStored | BlocksRemoved | BlocksCleared | None:
    kind: object
    values: object
    if isinstance(event, list) and event:
        kind, values = event[0], event[1:]
    elif isinstance(event, dict):
        kind, values = event.get("type"), event
    else:
        raise BadFrame("event is neither map nor array")
    match kind:
        case "BlockStored":
            return _decode_stored(_name_fields(values, _STORED_FIELDS))
        case "BlockRemoved":
            fields = _name_fields(values, _REMOVED_FIELDS)
            return BlocksRemoved(
                _hashes(fields.get("block_hashes")),
                _optional_str(fields.get("medium")),
                _optional_int(fields.get("group_idx")),
                fields.get("locality") == "REMOTE",
            )
        case "AllBlocksCleared":
            return BlocksCleared(_optional_str(_name_fields(values, _CLEARED_FIELDS).get("medium")))
        case str():
            return None
    raise BadFrame("event has no type")


def _decode_stored(fields: dict[str, Any]) -> BlocksStored:
    hashes = _hashes(fields.get("block_hashes"))
    token_ids = _token_ids(fields.get("token_ids"))
    block_size = _optional_int(fields.get("block_size"))
    extra_keys = fields.get("extra_keys")
    parent = fields.get("parent_block_hash")
    if block_size is None or block_size < 1 or len(token_ids) != len(hashes) * block_size:
        raise BadFrame("token ids do not fill the blocks")
    if extra_keys is not None and not (isinstance(extra_keys, list) and len(extra_keys) == len(hashes)):
        raise BadFrame("extra keys do not match the blocks")
    return BlocksStored(
        hashes=hashes,
        parent=None if parent is None else _hashes([parent])[0],
        token_ids=token_ids,
        block_size=block_size,
        lora_id=_optional_int(fields.get("lora_id")),
        medium=_optional_str(fields.get("medium")),
        lora_name=_optional_str(fields.get("lora_name")),
        extra_keys=extra_keys,
        group=_optional_int(fields.get("group_idx")),
        kind=_optional_str(fields.get("kv_cache_spec_kind")),
        remote=fields.get("locality") == "REMOTE",
    )


def _name_fields(value: object, names: tuple[str, ...]) -> dict[str, Any]:
    """Return the fields of a map or an array-like struct by name; an array may be longer or shorter than ``names``."""
    if isinstance(value, dict):
        return value
    if isinstance(value, list):
        return dict(zip(names, value, strict=False))
    raise BadFrame("neither map nor array")


def _hashes(value: object) -> tuple[EngineBlockHash, ...]:
    if not isinstance(value, list) or not all(type(item) is int or type(item) is bytes for item in value):
        raise BadFrame("block hashes are not integers or bytes")
    return tuple(value)


def _token_ids(value: object) -> "array[int]":
    if isinstance(value, list):
        try:
            return array("I", value)
        except (TypeError, OverflowError):
            pass
    raise BadFrame("token ids are not integers in 0..2^32-1")


def _optional_int(value: object) -> int | None:
    if value is None or type(value) is int:
        return value
    raise BadFrame("not an integer")


def _optional_str(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise BadFrame("not a string")
