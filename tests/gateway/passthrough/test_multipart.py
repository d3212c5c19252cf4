"""Forms are read strictly and written anew, so that every other reader finds the same parts."""

import io
from email import message_from_bytes
from email.message import Message

import pytest
from hypothesis import given
from hypothesis import strategies as st
from python_multipart import parse_form
from python_multipart.multipart import Field, File

from gateway.passthrough.multipart import MOST_PART_HEAD_BYTES, MOST_PARTS, BadForm, Part, read_form, write_form

TYPE = "multipart/form-data; boundary=xyz"
FILE = (
    b'--xyz\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\nRIFF\r\n'
)
MODEL = b'--xyz\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper\r\n'
END = b"--xyz--\r\n"

NAMES = st.text(st.characters(exclude_characters='"\\\r\n', exclude_categories=["Cs"]), max_size=20)
CONTENTS = st.binary(max_size=200) | st.lists(st.sampled_from([b"\r", b"\n", b"-", b"--xyz", b"a"])).map(b"".join)
PARTS = st.lists(st.builds(Part, NAMES, CONTENTS, st.none() | NAMES, st.none() | st.just("audio/wav")), max_size=5)
LINES = MODEL.splitlines(keepends=True)
OTHER = [b'; filename="b"', b"; filename*=utf-8''c", b"Content-Type: text/plain\r\n", b"X-Other: d\r\n"]
SCRAPS = [b"\r\n", b"\r", b"\n", b"--xyz", b"--", b" ", b":", b";", b'"', b"\\", b"a", b"\xff"]
PIECES = st.sampled_from([*SCRAPS, *LINES, *OTHER, FILE, MODEL, END])


def read_by_library(body: bytes, content_type: str, chunk_bytes: int) -> list[Part]:
    """Read a form as applications on Starlette do, which are given it in pieces."""
    found: list[Field | File] = []
    parse_form({"Content-Type": content_type.encode()}, io.BytesIO(body), found.append, found.append, chunk_bytes)
    return [_read_file(part) if isinstance(part, File) else _read_field(part) for part in found]


def _read_field(field: Field) -> Part:
    assert field.field_name is not None and field.value is not None
    return Part(field.field_name.decode(), field.value, None, field.content_type)


def _read_file(file: File) -> Part:
    assert file.field_name is not None and file.file_name is not None
    file.file_object.seek(0)
    return Part(file.field_name.decode(), file.file_object.read(), file.file_name.decode(), file.content_type)


def read_by_email(body: bytes, content_type: str) -> list[Part]:
    """Read a form as a message with attachments."""
    message = message_from_bytes(f"Content-Type: {content_type}\r\n\r\n".encode() + body)
    parts = []
    for inner in message.walk():
        if inner is not message:
            headers = {
                name: str(value).encode("ascii", "surrogateescape").decode() for name, value in inner.raw_items()
            }
            names = Message()
            names["Content-Disposition"] = headers["Content-Disposition"]
            name, filename = (names.get_param(key, header="Content-Disposition") for key in ("name", "filename"))
            content = inner.get_payload(decode=True)
            assert (
                isinstance(content, bytes) and isinstance(name, str) and (filename is None or isinstance(filename, str))
            )
            parts.append(Part(name, content, filename, headers.get("Content-Type")))
    return parts


def test_a_browsers_form() -> None:
    """Fields and files come with their names and types, in order."""
    assert read_form(FILE + MODEL + END, TYPE) == [
        Part("file", b"RIFF", "a.wav", "audio/wav"),
        Part("model", b"whisper"),
    ]


@given(PARTS)
def test_what_is_written_is_read_again(parts: list[Part]) -> None:
    """Any content survives, line ends and dashes included."""
    body, content_type = write_form(parts)
    assert read_form(body, content_type) == parts


@given(PARTS, st.integers(1, 100))
def test_every_reader_finds_the_same_parts(parts: list[Part], chunk_bytes: int) -> None:
    """What is written is the same form to the library, however it arrives, and to a reader of messages."""
    body, content_type = write_form(parts)
    assert read_by_library(body, content_type, chunk_bytes) == parts
    assert read_by_email(body, content_type) == parts


@given(st.lists(PIECES, max_size=8))
def test_what_is_taken_of_a_broken_form_is_a_whole_one(pieces: list[bytes]) -> None:
    """Whatever is taken of a form that was cut and glued together is written so that every reader finds it."""
    for body in (b"".join(pieces), FILE + b"".join(pieces) + END, MODEL[:-2] + b"".join(pieces) + b"\r\n" + END):
        try:
            parts = read_form(body, TYPE)
        except BadForm:
            continue
        written = write_form(parts)
        assert read_form(*written) == parts
        assert read_by_library(*written, 1024) == parts
        assert read_by_email(*written) == parts


@given(st.binary(max_size=300), st.sampled_from([TYPE, 'multipart/form-data; boundary="xyz"']))
def test_any_bytes_are_a_form_or_refused(tail: bytes, content_type: str) -> None:
    """Nothing but BadForm is raised, and what is taken can be written so that it reads the same."""
    for body in (tail, FILE + tail, b"--xyz" + tail + b"\r\n--xyz--"):
        try:
            parts = read_form(body, content_type)
        except BadForm:
            continue
        assert read_form(*write_form(parts)) == parts


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (FILE + END, "application/json"),
        (FILE + END, "multipart/form-data"),
        (FILE + END, "multipart/form-data; boundary="),
        (FILE + END, "multipart/form-data; boundary=xyz; charset=utf-8; boundary=abc"),
        (FILE + END, "multipart/form-data; boundary=" + "x" * 71),
        (FILE, TYPE),
        (b"", TYPE),
        (b"preamble\r\n" + FILE + END, TYPE),
        (FILE + END + b"epilogue", TYPE),
        (b"--xyz\r\n\r\nno headers\r\n" + END, TYPE),
        (b"--xyz\r\nContent-Type: text/plain\r\n\r\nno name\r\n" + END, TYPE),
        (b'--xyz\r\nContent-Disposition: form-data; name="a\r\n\r\nx\r\n' + END, TYPE),
        (b"--xyz\r\nContent-Disposition: form-data; name=bare\r\n\r\nx\r\n" + END, TYPE),
        (MODEL.replace(b'"model"', b'"a"; name="model"') + END, TYPE),
        (MODEL.replace(b"\r\n\r\n", b'\r\nContent-Disposition: form-data; name="b"\r\n\r\n') + END, TYPE),
        (MODEL.replace(b"\r\n\r\n", b"\r\nContent-Transfer-Encoding: base64\r\n\r\n") + END, TYPE),
        (MODEL.replace(b"model", b"\xff\xfe") + END, TYPE),
        (MODEL.replace(b"model", b"mod\\el") + END, TYPE),
        (FILE.replace(b"a.wav", b"C:\\a.wav") + END, TYPE),
        (MODEL.replace(b"\r\n\r\n", b"\r\nno colon\r\n\r\n") + END, TYPE),
        (MODEL.replace(b"\r\n\r\n", b'\r\n ; filename="folded"\r\n\r\n') + END, TYPE),
        (MODEL.replace(b"\r\n\r\n", b"\r\nX: " + b"x" * MOST_PART_HEAD_BYTES + b"\r\n\r\n") + END, TYPE),
        (
            MODEL.replace(
                b"\r\n\r\n",
                b"\r\nX: "
                + b"x" * (MOST_PART_HEAD_BYTES // 2)
                + b"\r\nY: "
                + b"y" * (MOST_PART_HEAD_BYTES // 2)
                + b"\r\n\r\n",
            )
            + END,
            TYPE,
        ),
        (MODEL.replace(b"whisper", b"a\r\n--xyzb") + END, TYPE),
        (MODEL.replace(b"whisper", b"a\r\n--xyz \r\n" + MODEL[7:-2]) + END, TYPE),
        (MODEL.replace(b"whisper\r\n", b"--xyz\r\n") + FILE + END, TYPE),
        (MODEL + b"--xyz--\r\n" + FILE + END, TYPE),
        (MODEL[:-11] + END, TYPE),
        (MODEL[:-11] + END.rstrip(), TYPE),
        (MODEL.replace(b"whisper\r\n", MODEL) + END, TYPE),
        (FILE.replace(b"\r\n\r\n", b"\r\nContent-Type: text/plain\r\n\r\n") + END, TYPE),
        (b"\r\npreamble\r\n" + FILE + END, TYPE),
        (FILE.replace(b"xyz", b"x y") + b"--x y--\r\n", "multipart/form-data; boundary=x y"),
        (MODEL * (MOST_PARTS + 1) + END, TYPE),
    ],
)
def test_other_shapes_are_refused(body: bytes, content_type: str, caplog: pytest.LogCaptureFixture) -> None:
    """What two readers could take for two different forms is no form; no line of the log is spent on it."""
    with pytest.raises(BadForm):
        read_form(body, content_type)
    assert not caplog.records


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (MODEL + END.rstrip(), TYPE),
        (b"\r\n" + MODEL + END, TYPE),
        (MODEL.replace(b"\r\n\r\n", b"; filename*=utf-8''m\r\n\r\n") + END, TYPE),
        (MODEL.replace(b"form-data; name", b"Form-Data;name").replace(b"Content-D", b"content-d") + END, TYPE),
        (MODEL.replace(b"\r\n\r\n", b"\r\nContent-Length: 7\r\n\r\n") + END, TYPE),
        (MODEL.replace(b"xyz", b"x y") + b"--x y--\r\n", 'Multipart/Form-Data;boundary="x y" '),
    ],
)
def test_spellings_that_all_readers_know_are_taken(body: bytes, content_type: str) -> None:
    """Clients differ in case, in spaces, in other headers and in the last line end."""
    assert read_form(body, content_type) == [Part("model", b"whisper")]
