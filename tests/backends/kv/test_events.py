"""The wire format of KV cache events."""

from array import array
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.kv.events import BadFrame, BlocksCleared, BlocksRemoved, BlocksStored, EventBatch, decode_batch

STORED_MAP = {
    "type": "BlockStored",
    "block_hashes": [11, b"\x01\x02"],
    "parent_block_hash": 10,
    "token_ids": [1, 2, 3, 4],
    "block_size": 2,
    "lora_id": None,
    "medium": "GPU",
    "lora_name": None,
    "extra_keys": [["salt"], None],
    "group_idx": 0,
    "kv_cache_spec_kind": "full_attention",
    "field_of_a_later_version": 1,
}
STORED_ARRAY = ["BlockStored", [11, b"\x01\x02"], 10, [1, 2, 3, 4], 2, None, "GPU", None, [["salt"], None], 0]
STORED = BlocksStored((11, b"\x01\x02"), 10, array("I", [1, 2, 3, 4]), 2, None, "GPU", None, [["salt"], None], 0)


def encode(batch: object) -> bytes:
    """Encode any batch at all."""
    return msgspec.msgpack.encode(batch)


def test_batch_of_maps() -> None:
    """The present dialect: an array batch of tagged maps; fields that are not known are ignored."""
    batch = decode_batch(encode([1.5, [STORED_MAP, {"type": "AllBlocksCleared"}], 3]))
    assert batch.rank == 3
    assert batch.skipped == 0
    assert batch.events == (replace(STORED, kind="full_attention"), BlocksCleared())


def test_batch_of_arrays() -> None:
    """The earlier dialect: arrays throughout, trailing fields absent or more than known."""
    events = [
        [*STORED_ARRAY, "full_attention", None, None, "later"],
        ["BlockStored", [5], None, [1], 1, None],
        ["BlockRemoved", [5, 6]],
        ["BlockRemoved", [7], "CPU", 2, "REMOTE"],
        ["AllBlocksCleared"],
    ]
    batch = decode_batch(encode([1, events]))
    assert batch == EventBatch(
        0,
        (
            replace(STORED, kind="full_attention"),
            BlocksStored((5,), None, array("I", [1]), 1),
            BlocksRemoved((5, 6)),
            BlocksRemoved((7,), "CPU", 2, remote=True),
            BlocksCleared(),
        ),
        0,
    )


def test_batch_as_a_map() -> None:
    """A third dialect: the batch itself is a map, with or without a tag."""
    events = [{"type": "BlockRemoved", "block_hashes": [1], "medium": None}, ["AllBlocksCleared", "GPU"]]
    fields = {"type": "KVEventBatch", "ts": 1.0, "events": events, "data_parallel_rank": None}
    assert decode_batch(encode(fields)) == EventBatch(0, (BlocksRemoved((1,)), BlocksCleared("GPU")), 0)


def test_unknown_events_are_counted() -> None:
    """An event type of a later version is skipped, not an error."""
    batch = decode_batch(encode([1.0, [{"type": "BlockMoved", "x": 1}, ["BlockDreamt"], ["BlockRemoved", []]], 0]))
    assert batch == EventBatch(0, (BlocksRemoved(()),), 2)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("block_hashes", None),
        ("block_hashes", [1, "x"]),
        ("block_hashes", [1, True]),
        ("block_hashes", [1]),
        ("parent_block_hash", 1.5),
        ("token_ids", [1, 2, 3]),
        ("token_ids", [1, 2, 3, -4]),
        ("token_ids", [1, 2, 3, 2**32]),
        ("token_ids", [1, 2, 3, "4"]),
        ("token_ids", "1234"),
        ("block_size", 0),
        ("block_size", -2),
        ("block_size", None),
        ("block_size", 2.0),
        ("block_size", 2**63),
        ("lora_id", "one"),
        ("lora_name", 7),
        ("medium", 7),
        ("extra_keys", [None]),
        ("extra_keys", "ab"),
        ("group_idx", [0]),
        ("kv_cache_spec_kind", 0),
        ("type", 4),
        ("type", None),
    ],
)
def test_wrong_fields_are_bad_frames(field: str, value: object) -> None:
    """A known event with a field of the wrong type, or lengths that do not fit, is refused."""
    with pytest.raises(BadFrame):
        decode_batch(encode([1.0, [{**STORED_MAP, field: value}], 0]))


@pytest.mark.parametrize(
    "batch",
    [
        None,
        7,
        "batch",
        [],
        [1.0],
        ["now", [], 0],
        [float("nan"), [], 0],
        [1.0, {}, 0],
        [1.0, [7], 0],
        [1.0, [[]], 0],
        [1.0, [None], 0],
        [1.0, [["BlockStored"]], 0],
        [1.0, [["BlockRemoved", 7]], 0],
        [1.0, [], -1],
        [1.0, [], 10**6],
        [1.0, [], "0"],
        {"ts": 1.0},
        {},
    ],
)
def test_wrong_batches_are_bad_frames(batch: object) -> None:
    """A batch that is not one is refused."""
    with pytest.raises(BadFrame):
        decode_batch(encode(batch))


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\x91" * 100_000,
        encode([1.0, [STORED_MAP], 0])[:-1],
        encode([1.0, [STORED_MAP], 0]) + b"\x00",
        b"\x93\xcb" + b"\x00" * 8 + b"\x90\xd6\xff\x00\x00\x00\x00\x81\xc0",
        b"\x81\x81\x01\x02\x03",
    ],
)
def test_what_is_not_msgpack_is_a_bad_frame(payload: bytes) -> None:
    """Truncated, endless, deep and trailing input is refused without a large allocation."""
    with pytest.raises(BadFrame):
        decode_batch(payload)


def test_too_large_a_payload_is_a_bad_frame() -> None:
    """Nobody sends 64 MiB of events."""
    with pytest.raises(BadFrame, match="too large"):
        decode_batch(bytes((64 << 20) + 1))


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_else(payload: bytes) -> None:
    """Any bytes are a batch or a bad frame."""
    decode_or_refuse(payload)


@settings(deadline=None)
@given(st.data())
def test_no_damage_raises_anything_else(data: st.DataObject) -> None:
    """A batch with bytes changed or cut away is a batch or a bad frame."""
    payload = bytearray(encode([1.0, [STORED_MAP, STORED_ARRAY, ["BlockRemoved", [1], "GPU"]], 0]))
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    decode_or_refuse(bytes(payload[: data.draw(st.integers(0, len(payload)))]))


_VALUES: Any = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=20,
)


@settings(deadline=None)
@given(st.lists(_VALUES, max_size=3), st.sampled_from(sorted(STORED_MAP)), _VALUES)
def test_no_values_raise_anything_else(events: list[object], field: str, value: object) -> None:
    """Well-formed msgpack with any values is a batch or a bad frame."""
    decode_or_refuse(encode([1.0, [{**STORED_MAP, field: value}, *events], 0]))


def decode_or_refuse(payload: bytes) -> None:
    """Decode, and let only BadFrame pass."""
    try:
        batch = decode_batch(payload)
    except BadFrame:
        return
    assert isinstance(batch, EventBatch)
