"""``multipart/form-data``, read whole and strictly, and written anew, so that no second reader sees another body.

No I/O. A part is taken only in the shape that browsers and HTTP clients write: a ``Content-Disposition: form-data``
with a quoted name, perhaps a file name, perhaps a ``Content-Type``; other headers are left out.
"""

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

MOST_PARTS = 256
MOST_PART_HEAD_BYTES = 4096

_BOUNDARY = re.compile(r"""multipart/form-data\s*;\s*boundary=(?:"([^"\\]{1,70})"|([^\s";,\\]{1,70}))\s*""", re.I)
_BOUNDARY_BYTES = re.compile(r"[0-9A-Za-z'()+_,./:=? -]*[0-9A-Za-z'()+_,./:=?-]")
_NAMES = re.compile(
    rb"""form-data; *name="([^"\r\n]*)"(?:; *filename="([^"\r\n]*)")?(?:; *filename\*=[^;"\r\n]*)?""", re.I
)
_CONTENT_TYPE = re.compile(rb"[\x20-\x7e]{1,200}")


class BadForm(Exception):
    """The body is no form of the shape that is taken; the message is for the client."""


@dataclass(frozen=True, slots=True)
class Part:
    """One field or file. ``filename`` None: a plain field."""

    name: str
    content: bytes
    filename: str | None = None
    content_type: str | None = None


def read_form(body: bytes, content_type: str) -> list[Part]:
    """Return the parts in order. Raises BadForm."""
    found = _BOUNDARY.fullmatch(content_type)
    boundary = (found[1] or found[2]) if found else ""
    if not _BOUNDARY_BYTES.fullmatch(boundary):
        raise BadForm("The content type must be multipart/form-data with a boundary.")
    delimiter = b"\r\n--" + boundary.encode("ascii")
    pieces = (b"\r\n" + body).split(delimiter)
    if len(pieces) < 2 or pieces[0].strip(b"\r\n"):
        raise BadForm("The form does not begin with its boundary.")
    if len(pieces) > MOST_PARTS + 2:
        raise BadForm(f"A form may have at most {MOST_PARTS} parts.")
    if pieces[-1] not in (b"--", b"--\r\n"):
        raise BadForm("The form does not end with its boundary.")
    return [_read_part(piece) for piece in pieces[1:-1]]


def write_form(parts: Sequence[Part]) -> tuple[bytes, str]:
    """Return a body and its content type."""
    boundary = secrets.token_hex(16)
    pieces = []
    for part in parts:
        name = f'; filename="{part.filename}"' if part.filename is not None else ""
        kind = f"\r\nContent-Type: {part.content_type}" if part.content_type is not None else ""
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{part.name}"{name}{kind}\r\n\r\n'
        pieces += [head.encode(), part.content, b"\r\n"]
    pieces.append(f"--{boundary}--\r\n".encode())
    return b"".join(pieces), f"multipart/form-data; boundary={boundary}"


def _read_part(piece: bytes) -> Part:
    head, found, content = piece.partition(b"\r\n\r\n")
    if not found or not head.startswith(b"\r\n") or len(head) > MOST_PART_HEAD_BYTES:
        raise BadForm("A part of the form has no headers of its own.")
    names: re.Match[bytes] | None = None
    content_type = None
    for line in head[2:].split(b"\r\n"):
        name, _, value = line.partition(b":")
        match name.lower():
            case b"content-disposition" if names is None:
                names = _NAMES.fullmatch(value.strip())
            case b"content-type" if content_type is None and _CONTENT_TYPE.fullmatch(value.strip()):
                content_type = value.strip().decode("ascii")
            case b"content-disposition" | b"content-type" | b"content-transfer-encoding":
                raise BadForm("A part of the form has headers that are not understood.")
    if names is None:
        raise BadForm("A part of the form has no name.")
    try:
        filename = None if names[2] is None else names[2].decode()
        return Part(names[1].decode(), content, filename, content_type)
    except UnicodeDecodeError as error:
        raise BadForm("A name in the form is not UTF-8.") from error
