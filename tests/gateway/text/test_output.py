"""Ids to the text that a client sees."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.text.detokenise import OutputText, TextOptions
from tests.gateway.text.families import FAMILIES, token
from tests.gateway.text.test_stops import first_match

VOCABULARY = FAMILIES["byte_level"]
END = token(VOCABULARY, "<|im_end|>")


def encode(text: str) -> list[int]:
    """Return a text's ids."""
    return VOCABULARY.tokenizer.encode(text, add_special_tokens=False).ids


@given(
    st.lists(st.integers(3, VOCABULARY.size - 1), max_size=40),
    st.lists(st.sampled_from(["e", "th", " the", "😀", "\ufffd", "ab"]), max_size=3, unique=True),
    st.data(),
)
def test_text_is_the_log_cut_at_the_first_stop(ids: list[int], stop: list[str], data: st.DataObject) -> None:
    """For any ids and chunking the text is the decoded log cut at the first match, made of the ids it needed."""
    output = OutputText(VOCABULARY, TextOptions(stop=tuple(stop)))
    text, taken, at = "", 0, 0
    while at < len(ids) and output.stopped is None:
        size = data.draw(st.integers(1, 5))
        piece = output.push(ids[at : at + size])
        text += piece.text
        taken += len(piece.ids)
        at += size
    text += output.finish(terminator=False)
    whole = VOCABULARY.tokenizer.decode(ids)
    match = first_match(whole, stop)
    assert text == (whole if match is None else whole[: match[0]])
    assert output.stopped == (None if match is None else whole[slice(*match)])
    assert taken == output.tokens
    if match is not None:
        assert all(
            s not in VOCABULARY.tokenizer.decode(ids[: taken - 1]).rstrip("\ufffd") for s in stop if "\ufffd" not in s
        )


def test_terminator_is_no_text() -> None:
    """The id that ended the answer is counted and not shown, special or not."""
    dot = encode(".")[0]
    output = OutputText(VOCABULARY, TextOptions(terminators=frozenset({dot}), skip_special_tokens=False))
    piece = output.push([*encode("Hello"), dot])
    assert piece.text + output.finish(terminator=True) == "Hello"
    assert output.tokens == len(encode("Hello")) + 1


def test_terminator_is_shown_on_request() -> None:
    """With ``include_stop_str_in_output`` the terminator's text is part of the answer."""
    options = TextOptions(terminators=frozenset({END}), skip_special_tokens=False, include_stop_str_in_output=True)
    output = OutputText(VOCABULARY, options)
    assert output.push([*encode("Hello"), END]).text + output.finish(terminator=True) == "Hello<|im_end|>"


def test_terminator_that_did_not_end_the_answer() -> None:
    """An id that could have ended the answer and did not is text like any other, in its place."""
    options = TextOptions(terminators=frozenset({END}), skip_special_tokens=False)
    output = OutputText(VOCABULARY, options)
    text = output.push([END]).text + output.push(encode("Hello")).text + output.finish(terminator=False)
    assert text == "<|im_end|>Hello"


def test_minimum_length() -> None:
    """A stop string does not count before ``min_tokens`` ids."""
    ids = encode("a.b.c")
    output = OutputText(VOCABULARY, TextOptions(stop=(".",), min_tokens=3))
    assert output.push(ids).text == "a.b"
    assert output.tokens == 4


def test_offsets() -> None:
    """Each id's offset is where its text begins."""
    ids = encode("Hello 😀!")
    output = OutputText(VOCABULARY, TextOptions())
    piece = output.push(ids)
    assert len(piece.offsets) == len(ids)
    assert piece.offsets[-1] == len("Hello 😀")
