"""Request bodies that come compressed: unpacked within the limit of a body, in one piece.

A few bytes can stand for very many, so what comes out is bounded as it comes.
"""

import asyncio
import zlib
from collections.abc import Callable

import brotli
import zstandard
from starlette.types import Scope

from gateway.errors import GatewayError

INLINE_BYTES = 16 << 10
"""Smaller bodies, which unpack to little, are unpacked on the event loop."""
STEP_BYTES, ZSTD_STEP_BYTES = 64 << 10, 256


class TooMuch(Exception):
    """More comes out than may."""


class BadPacking(Exception):
    """This is not what its encoding says."""


async def unpack_body(scope: Scope, body: bytes, limit_bytes: int, hold: Callable[[int], None]) -> bytes:
    """Return a body as its Content-Encoding has it; ``hold`` is told of the bytes that came out beyond its own.

    Raises GatewayError 400, 413 and 415, and what ``hold`` raises.
    """
    named = [value for name, value in scope["headers"] if name == b"content-encoding"]
    encoding = b",".join(named).decode("latin-1").strip().lower()
    if encoding in ("", "identity"):
        return body
    unpack = ENCODINGS.get(encoding)
    if unpack is None:
        headers = {"accept-encoding": ", ".join(ENCODINGS)}
        message = "Bodies may be packed by gzip, deflate, zstd or br, one of them."
        raise GatewayError(415, message, code="unsupported_encoding", headers=headers)
    try:
        if len(body) <= INLINE_BYTES:
            made = unpack(body, limit_bytes)
        else:
            made = await asyncio.to_thread(unpack, body, limit_bytes)
    except TooMuch:
        raise GatewayError(413, f"The request body unpacks to more than {limit_bytes} bytes.") from None
    except BadPacking:
        raise GatewayError(400, f"The request body is not {encoding}.", code="invalid_encoding") from None
    hold(max(0, len(made) - len(body)))
    return made


def unpack_zlib(body: bytes, limit_bytes: int) -> bytes:
    """Unpack gzip or zlib, whichever its head tells."""
    packer = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)
    try:
        made = packer.decompress(body, limit_bytes + 1)
    except zlib.error as error:
        raise BadPacking from error
    if len(made) > limit_bytes:
        raise TooMuch
    if not packer.eof or packer.unused_data:
        raise BadPacking
    return made


def unpack_zstd(body: bytes, limit_bytes: int) -> bytes:
    """Unpack one frame of Zstandard; windows of more than 8 MB are refused, as browsers do."""
    packer = zstandard.ZstdDecompressor(max_window_size=8 << 20).decompressobj()
    pieces, taken, at = [], 0, 0
    try:
        while at < len(body) and not packer.eof:
            # What comes out of one call has no bound of its own.
            piece = packer.decompress(body[at : at + ZSTD_STEP_BYTES])
            at += ZSTD_STEP_BYTES
            taken += len(piece)
            if taken > limit_bytes:
                raise TooMuch
            pieces.append(piece)
    except zstandard.ZstdError as error:
        raise BadPacking from error
    if not packer.eof or packer.unused_data or at < len(body):
        raise BadPacking
    return b"".join(pieces)


def unpack_brotli(body: bytes, limit_bytes: int) -> bytes:
    """Unpack Brotli."""
    packer, pieces, taken = brotli.Decompressor(), [], 0
    try:
        piece = packer.process(body, output_buffer_limit=STEP_BYTES)
        while piece or not packer.can_accept_more_data():
            taken += len(piece)
            if taken > limit_bytes:
                raise TooMuch
            pieces.append(piece)
            piece = packer.process(b"", output_buffer_limit=STEP_BYTES)
    except brotli.error as error:
        raise BadPacking from error
    if not packer.is_finished():
        raise BadPacking
    return b"".join(pieces)


ENCODINGS: dict[str, Callable[[bytes, int], bytes]] = {
    "gzip": unpack_zlib,
    "deflate": unpack_zlib,
    "zstd": unpack_zstd,
    "br": unpack_brotli,
}
