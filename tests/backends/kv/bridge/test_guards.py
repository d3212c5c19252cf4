"""Tests of LMCache's metadata strings, against those that LMCache 0.5.6 wrote."""

import struct

import pytest

from backends.kv.bridge.guards import guarded_size_bytes

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
