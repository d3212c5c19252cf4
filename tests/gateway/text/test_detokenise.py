"""Incremental detokenising against the tokenizers' own one-shot decode."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.text.detokenise import make_detokeniser
from gateway.text.vocabulary import Vocabulary
from tests.gateway.text.families import FAMILIES, token

BYTE_LEVEL = FAMILIES["byte_level"]
BYTE_FALLBACK = FAMILIES["byte_fallback"]


def decode_stepwise(vocabulary: Vocabulary, ids: list[int], *, skip: bool = True, spaces: bool = True) -> list[str]:
    """Return the text of each push and of the flush."""
    detokeniser = make_detokeniser(vocabulary, skip_special_tokens=skip, spaces_between_special_tokens=spaces)
    return [*(detokeniser.push(token_id) for token_id in ids), detokeniser.flush()]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("skip", [True, False])
def test_equals_one_shot_decode(family: str, skip: bool) -> None:
    """For any ids, unknown ones included, the deltas together are the tokenizer's own text of them."""
    vocabulary = FAMILIES[family]

    @given(st.lists(st.integers(0, vocabulary.size + 3), max_size=90))
    def check(ids: list[int]) -> None:
        whole = vocabulary.tokenizer.decode(ids, skip_special_tokens=skip)
        assert "".join(decode_stepwise(vocabulary, ids, skip=skip)) == whole

    check()


@given(st.lists(st.integers(3, 258), max_size=40))
def test_runs_of_byte_tokens(ids: list[int]) -> None:
    """Any bytes, whole characters or not, read as the tokenizer reads them."""
    assert "".join(decode_stepwise(BYTE_FALLBACK, ids)) == BYTE_FALLBACK.tokenizer.decode(ids)


@given(st.text(max_size=60))
def test_round_trip(text: str) -> None:
    """A text's ids give the text, and no replacement character on the way."""
    ids = BYTE_LEVEL.tokenizer.encode(text, add_special_tokens=False).ids
    pieces = decode_stepwise(BYTE_LEVEL, ids, skip=False)
    assert "".join(pieces) == text
    assert all("\ufffd" not in piece for piece in pieces) or "\ufffd" in text


@pytest.mark.parametrize("character", ["😀", "ď", "👨‍👩‍👧‍👦", "ส"])
def test_split_character_waits(character: str) -> None:
    """A character of several tokens appears when its last byte is there."""
    ids = [token(BYTE_LEVEL, letter) for letter in to_letters(character.encode())]
    pieces = decode_stepwise(BYTE_LEVEL, ids)
    assert "".join(pieces) == character
    assert pieces[-1] == ""


def to_letters(data: bytes) -> list[str]:
    """Return the byte-level letters of the bytes."""
    names = {BYTE_LEVEL.bytes[token_id]: token_id for token_id in range(BYTE_LEVEL.size)}
    found = [BYTE_LEVEL.name(names[bytes([byte])]) for byte in data]
    return [name for name in found if name is not None]


def test_incomplete_character_is_flushed_once() -> None:
    """Bytes that never become a character read as one replacement character at the end."""
    ids = [token(BYTE_LEVEL, letter) for letter in to_letters("😀".encode()[:3])]
    assert decode_stepwise(BYTE_LEVEL, ids) == ["", "", "", "\ufffd"]


def test_leading_space_is_kept_once() -> None:
    """A sentencepiece vocabulary drops the space in front of the first piece only."""
    ids = [token(BYTE_FALLBACK, name) for name in ("▁H", "e", "ll", "o", "▁wor", "l", "d")]
    assert "".join(decode_stepwise(BYTE_FALLBACK, ids)) == "Hello world"


def test_lone_space_piece_before_a_spaced_piece() -> None:
    """A space piece of its own and the next piece's space are both kept, but for the very first."""
    ids = [token(BYTE_FALLBACK, name) for name in ("▁", "▁the", "▁", "▁the")]
    assert "".join(decode_stepwise(BYTE_FALLBACK, ids)) == BYTE_FALLBACK.tokenizer.decode(ids)


def test_special_token_after_special_token_without_spaces() -> None:
    """Without spaces between special tokens, a second special token adds its own spelling alone."""
    vocabulary = FAMILIES["word_piece"]
    separator = token(vocabulary, "[SEP]")
    assert "".join(decode_stepwise(vocabulary, [2, separator, separator], skip=False)) == "hello [SEP] [SEP]"
    joined = decode_stepwise(vocabulary, [2, separator, separator], skip=False, spaces=False)
    assert "".join(joined) == "hello [SEP][SEP]"


@pytest.mark.parametrize(
    ("family", "dialect"),
    [
        ("byte_level", "bytes"),
        ("byte_fallback", "pieces"),
        ("unstripped", "pieces"),
        ("metaspace", "pieces"),
        ("word_piece", "pieces"),
        ("end_of_word", "window"),
        ("bare", "pieces"),
    ],
)
def test_dialects(family: str, dialect: str) -> None:
    """Each family is decoded in the cheapest way that is exact for it."""
    assert FAMILIES[family].dialect == dialect


@given(st.lists(st.integers(0, FAMILIES["end_of_word"].size - 1), min_size=100, max_size=300))
def test_long_texts_through_the_window(ids: list[int]) -> None:
    """The window way stays exact over texts much longer than its window."""
    vocabulary = FAMILIES["end_of_word"]
    assert "".join(decode_stepwise(vocabulary, ids)) == vocabulary.tokenizer.decode(ids)
