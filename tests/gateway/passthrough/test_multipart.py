"""Forms are read strictly and written anew."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.passthrough.multipart import MOST_PARTS, BadForm, Part, read_form, write_form

TYPE = "multipart/form-data; boundary=xyz"
FILE = (
    b'--xyz\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\nRIFF\r\n'
)
MODEL = b'--xyz\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper\r\n'
END = b"--xyz--\r\n"

NAMES = st.text(st.characters(exclude_characters='"\r\n', exclude_categories=["Cs"]), max_size=20)
PARTS = st.lists(
    st.builds(Part, NAMES, st.binary(max_size=200), st.none() | NAMES, st.none() | st.just("audio/wav")), max_size=5
)


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
        (MODEL * (MOST_PARTS + 1) + END, TYPE),
    ],
)
def test_other_shapes_are_refused(body: bytes, content_type: str) -> None:
    """What two readers could take for two different forms is no form."""
    with pytest.raises(BadForm):
        read_form(body, content_type)
