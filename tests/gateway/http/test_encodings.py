"""Packed bodies: unpacked within limits, or refused."""

import gzip
import zlib
from typing import Any

import brotli
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import GatewayError
from gateway.http.encodings import ENCODINGS, BadPacking, TooMuch, unpack_body

PACKERS: dict[str, Any] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "zstd": zstandard.ZstdCompressor().compress,
    "br": brotli.compress,
}
TEXT = b'{"model": "m", "messages": []}' * 3000


def scope(*encodings: str) -> dict[str, Any]:
    """A request with these headers."""
    return {"headers": [(b"content-encoding", encoding.encode()) for encoding in encodings]}


@pytest.mark.parametrize("encoding", [*PACKERS, "GZIP", " br "])
async def test_every_encoding(encoding: str) -> None:
    """A body packed by any of them is what it was; what came out is accounted for."""
    held: list[int] = []
    packed = PACKERS[encoding.strip().lower()](TEXT)
    assert await unpack_body(scope(encoding), packed, len(TEXT), held.append) == TEXT
    assert held == [len(TEXT) - len(packed)]


async def test_plain_bodies_stay() -> None:
    """Without an encoding, or with none by name, a body is itself."""
    for headers in (scope(), scope("identity")):
        assert await unpack_body(headers, b"{}", 10, lambda count: None) == b"{}"


@pytest.mark.parametrize(
    ("encoding", "body", "status"),
    [
        *((name, packer(b"\0" * (1 << 22)), 413) for name, packer in PACKERS.items()),
        *((name, packer(TEXT)[:-5], 400) for name, packer in PACKERS.items()),
        *((name, packer(TEXT) + b"more", 400) for name, packer in PACKERS.items()),
        *((name, b"{}", 400) for name in PACKERS),
        ("compress", b"{}", 415),
        ("gzip, br", b"{}", 415),
    ],
)
async def test_refused(encoding: str, body: bytes, status: int) -> None:
    """A body that unpacks to too much, is cut, has more behind it, or has another encoding is refused."""
    with pytest.raises(GatewayError) as caught:
        await unpack_body(scope(encoding), body, 1 << 20, lambda count: None)
    assert caught.value.status == status


@given(name=st.sampled_from(sorted(ENCODINGS)), body=st.binary(max_size=200), cut=st.integers(0, 60))
def test_any_bytes(name: str, body: bytes, cut: int) -> None:
    """Whatever comes, something comes out or it is refused; a packed text comes out as it was."""
    assert ENCODINGS[name](PACKERS[name](body), 1000) == body
    for odd in (body, PACKERS[name](body)[cut:]):
        try:
            assert len(ENCODINGS[name](odd, 1000)) <= 1000
        except (BadPacking, TooMuch):
            pass
