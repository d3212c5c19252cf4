"""Tests of LMCache's metadata strings, against those that LMCache 0.5.6 wrote."""

import struct

import pytest
import torch
from lmcache.v1.memory_management import MemoryFormat
from lmcache.v1.protocol import RemoteMetadata, init_remote_metadata_info

from backends.kv.bridge.guards import guarded_size_bytes, regrouped_guard
from backends.kv.bridge.reshard import LayoutRefused, plan_lots
from backends.types import KvShape

FLOAT32_METADATA = bytes.fromhex("00000400010000000400000002000000040000004000000080000000")
BFLOAT16_METADATA = bytes.fromhex("00000200010000000300000002000000040000004000000080000000")


def test_metadata_tells_the_size() -> None:
    """The size is read from metadata as LMCache writes it, for both dtypes."""
    assert guarded_size_bytes(FLOAT32_METADATA) == 262144
    assert guarded_size_bytes(BFLOAT16_METADATA) == 131072


@pytest.mark.parametrize(
    "metadata",
    [
        b"",
        FLOAT32_METADATA[:-1],
        FLOAT32_METADATA[:8],
        struct.pack("<7i", 0, 1, 4, 2, 4, 64, 128),
        struct.pack("<7i", -262144, 1, 4, 2, 4, 64, 128),
        struct.pack("<7i", 262140, 1, 4, 2, 4, 64, 128),
        struct.pack("<7i", 262144, 1, 3, 2, 4, 64, 128),
    ],
)
def test_metadata_that_contradicts_itself(metadata: bytes) -> None:
    """Metadata of the wrong length, without a size, or with one that its shape contradicts, is refused."""
    with pytest.raises(ValueError, match="metadata"):
        guarded_size_bytes(metadata)


def test_compressed_metadata_is_taken_at_its_word() -> None:
    """A serialised chunk's size has no relation to its shape."""
    assert guarded_size_bytes(struct.pack("<7i", 1234, 4, 0, 1234, 0, 0, 0)) == 1234


SPLIT = KvShape("split", 4, 2, 32)


def written_by_lmcache(ranks: int, tokens: int = 16) -> bytes:
    """Metadata that LMCache itself writes beside a rank's shard of KV of two heads of 16 bfloat16 in four layers."""
    init_remote_metadata_info(1)
    shape = torch.Size([2, 4, tokens, 2 // ranks * 16])
    return bytes(RemoteMetadata(shape.numel() * 2, [shape], [torch.bfloat16], MemoryFormat.KV_2LTD).serialize())


@pytest.mark.parametrize(("source", "dest"), [(1, 2), (2, 1), (2, 4)])
def test_metadata_of_regrouped_shards(source: int, dest: int) -> None:
    """A new shard's metadata is what LMCache writes beside one of that size."""
    (lot, *_) = plan_lots(SPLIT, 16, source, dest)
    guards = [written_by_lmcache(source)] * len(lot.source_ranks)
    assert regrouped_guard(guards, lot.regrouping) == written_by_lmcache(min(dest, 2))


@pytest.mark.parametrize(
    ("guards", "why"),
    [
        ([struct.pack("<7i", 1024, 6, 3, 1, 4, 16, 8)] * 2, "KV_MLA_FMT"),
        ([struct.pack("<7i", 1024, 4, 0, 1024, 0, 0, 0)] * 2, "BINARY"),
        ([struct.pack("<12i", 4096, 1, *([3, 2, 4, 16, 8] * 2))] * 2, "2 groups of layers"),
        ([written_by_lmcache(2), written_by_lmcache(2, tokens=8)], "different metadata"),
        ([written_by_lmcache(2, tokens=8)] * 2, "64 rows of 32 bytes, where the KV's shape makes 128 of 32"),
        ([written_by_lmcache(1)] * 2, "128 rows of 64 bytes, where the KV's shape makes 128 of 32"),
    ],
)
def test_layouts_that_are_not_known_are_refused_by_name(guards: list[bytes], why: str) -> None:
    """Shards of another memory format or of another shape than the order says are not regrouped."""
    (lot,) = plan_lots(SPLIT, 16, 2, 1)
    with pytest.raises(LayoutRefused, match=why):
        regrouped_guard(guards, lot.regrouping)
