"""``multipart/form-data``, read whole and strictly, and written anew, so that no second reader sees another body.

No I/O. ``python-multipart`` reads, as it does for Starlette; it forgives much, so whatever another reader could take
differently is refused around it. A part is taken only in the shape that browsers and HTTP clients write: a
``Content-Disposition: form-data`` with a quoted name, perhaps a file name, perhaps a ``Content-Type``; other headers
are left out.
"""

import logging
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

from python_multipart import MultipartParser
from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartState, parse_options_header

MOST_PARTS = 256
MOST_PART_HEAD_BYTES = 4096

# The library's values are used; these say in which spellings all readers find the same ones. A backslash is none of
# them: some take it for an escape, some for a separator of folders, some for itself.
_FORM_TYPE = re.compile(
    r"""multipart/form-data[ \t]*;[ \t]*boundary=
    (?:"[0-9A-Za-z'()+_,./:=?\ -]{0,69}[0-9A-Za-z'()+_,./:=?-]"|[0-9A-Za-z'()+_./:=?-]{1,70})[ \t]*""",
    re.IGNORECASE | re.VERBOSE,
)
_DISPOSITION = re.compile(
    rb"""form-data; *name="[^"\\\r\n]*"(?:; *filename="[^"\\\r\n]*")?(?:; *filename\*=[^;"\r\n]*)?""", re.IGNORECASE
)
_CONTENT_TYPE = re.compile(rb"[\x20-\x7e]{1,200}")

# It would write a line of the log for each form that a client gets wrong.
logging.getLogger("python_multipart").setLevel(logging.ERROR)


class BadForm(Exception):
    """The body is no form of the shape that is taken; the message is for the client."""


@dataclass(frozen=True, slots=True)
class Part:
    """One field or file. ``filename`` None: a plain field."""

    name: str
    content: bytes
    filename: str | None = None
    content_type: str | None = None


@dataclass(slots=True)
class _Found:
    """A part as the parser finds it."""

    headers: list[tuple[bytes, list[bytes]]] = field(default_factory=list)
    content: list[bytes] = field(default_factory=list)


def read_form(body: bytes, content_type: str) -> list[Part]:
    """Return the parts in order. Raises BadForm."""
    if not _FORM_TYPE.fullmatch(content_type):
        raise BadForm("The content type must be multipart/form-data with a boundary.")
    boundary = parse_options_header(content_type)[1][b"boundary"]
    delimiters = _count_delimiters(body, b"\r\n--" + boundary)
    if delimiters > MOST_PARTS + 1:
        raise BadForm(f"A form may have at most {MOST_PARTS} parts.")
    found: list[_Found] = []
    parser = MultipartParser(
        boundary,
        {
            "on_part_begin": lambda: found.append(_Found()),
            "on_header_field": lambda data, start, end: found[-1].headers.append((data[start:end].lower(), [])),
            "on_header_value": lambda data, start, end: found[-1].headers[-1][1].append(data[start:end]),
            "on_part_data": lambda data, start, end: found[-1].content.append(data[start:end]),
        },
    )
    try:
        parser.write(body)
    except MultipartParseError as error:
        raise BadForm("A part of the form has headers that are not understood.") from error
    if parser.state != MultipartState.END or delimiters != len(found) + 1:
        raise BadForm("A part of the form has no headers of its own.")
    return [_judge(part) for part in found]


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


def _count_delimiters(body: bytes, delimiter: bytes) -> int:
    """Count the lines that begin with the boundary. Raises BadForm if more is on one, or if text is outside of parts.

    The library skips a preamble and an epilogue, and takes a line that goes on after the boundary for content.
    """
    framed = b"\r\n" + body
    if framed[: framed.find(delimiter)].strip(b"\r\n"):
        raise BadForm("The form does not begin with its boundary.")
    if not framed.endswith((delimiter + b"--", delimiter + b"--\r\n")):
        raise BadForm("The form does not end with its boundary.")
    count = framed.count(delimiter)
    if count != framed.count(delimiter + b"\r\n") + 1:
        raise BadForm("A line of the form goes on after its boundary.")
    return count


def _judge(found: _Found) -> Part:
    headers = [(name, b"".join(pieces).strip(b" \t")) for name, pieces in found.headers]
    if sum(len(name) + len(value) for name, value in headers) > MOST_PART_HEAD_BYTES:
        raise BadForm(f"A part of the form has more than {MOST_PART_HEAD_BYTES} bytes of headers.")
    names = content_type = None
    for name, value in headers:
        match name:
            case b"content-disposition" if names is None and _DISPOSITION.fullmatch(value):
                names = parse_options_header(value)[1]
            case b"content-type" if content_type is None and _CONTENT_TYPE.fullmatch(value):
                content_type = value.decode("ascii")
            case b"content-disposition" | b"content-type" | b"content-transfer-encoding":
                raise BadForm("A part of the form has headers that are not understood.")
    if names is None:
        raise BadForm("A part of the form has no name.")
    try:
        filename = names[b"filename"].decode() if b"filename" in names else None
        return Part(names[b"name"].decode(), b"".join(found.content), filename, content_type)
    except UnicodeDecodeError as error:
        raise BadForm("A name in the form is not UTF-8.") from error
