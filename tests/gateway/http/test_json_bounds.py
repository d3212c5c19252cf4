"""What a JSON text holds is counted as a parser would make it."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import GatewayError
from gateway.http.body import parse_object
from gateway.http.json_bounds import (
    MOST_DEPTH,
    MOST_ENTRIES,
    MOST_PARSED_VALUES,
    MOST_VALUES,
    BoundedJson,
    Structure,
    count_structure,
)

TEXTS = st.text('ab"\\,:[]{}\n\u00e9', max_size=12)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)


def walk(value: Any) -> Structure:
    """Count a value's parts one by one."""
    if not isinstance(value, dict | list):
        return Structure()
    inner = [walk(entry) for entry in (value.values() if isinstance(value, dict) else value)]
    keys = len(value) if isinstance(value, dict) else 0
    return Structure(
        max(0, len(value) - 1) + sum(one.values for one in inner), 1 + keys + sum(one.entries for one in inner)
    )


@given(JSON, st.booleans(), st.integers(1, 40))
def test_a_count_is_that_of_the_values(value: Any, ascii_only: bool, step_bytes: int) -> None:
    """Marks inside strings are none, escaped or not, wherever the steps cut the text."""
    body = json.dumps(value, ensure_ascii=ascii_only).encode()
    assert list(count_structure(body, step_bytes))[-1] == walk(value)


@given(st.binary(max_size=60), st.integers(1, 9))
def test_any_bytes_are_counted_to_their_end(body: bytes, step_bytes: int) -> None:
    """What is no JSON is counted all the same, and never as more marks than it has."""
    *_, found = Structure(), *count_structure(body, step_bytes)
    assert 0 <= found.values <= body.count(b",")
    assert 0 <= found.entries <= sum(map(body.count, (b":", b"[", b"{")))


@pytest.mark.parametrize(
    "body",
    [
        b'{"metadata": [' + b"0," * (MOST_VALUES + 1) + b"0]}",
        b'{"metadata": [' + b"[]," * MOST_ENTRIES + b"[]]}",
        b'{"metadata": [' + b"{}," * MOST_ENTRIES,
        b'{"metadata": {' + b'"":0,' * MOST_ENTRIES + b'"":0}}',
    ],
    ids=["numbers", "lists", "objects without an end", "keys"],
)
def test_a_body_that_holds_too_much_is_refused(body: bytes) -> None:
    """A body is refused for what it holds before any of it is made, whole or not."""
    with pytest.raises(
        GatewayError, match="holds more than 1500000 values, or 100000 keys, lists and objects"
    ) as refused:
        parse_object(body)
    assert (refused.value.status, refused.value.code) == (400, "invalid_value")


def test_many_keys_are_looked_through_once() -> None:
    """A small body of many keys, of which one may be written twice, does not hold the process for seconds."""
    keys = b",".join(b'"k%d":0' % rank for rank in range(MOST_ENTRIES - 3))
    assert len(parse_object(b'{"\\u0061":0,' + keys + b"}")) == MOST_ENTRIES - 2
    with pytest.raises(GatewayError, match="'k7' is given more than once"):
        parse_object(b'{"\\u0061":0,' + keys + b',"k7":1}')


def test_long_texts_and_prompts_are_taken() -> None:
    """Marks in a text are no values, and a prompt of a million ids is none too many."""
    text = "[{:," * MOST_ENTRIES * 2
    assert parse_object(json.dumps({"prompt": text}).encode()) == {"prompt": text}
    assert len(parse_object(b'{"prompt": [' + b"7," * 1_048_576 + b"7]}")["prompt"]) == 1_048_577


@pytest.mark.parametrize(
    "text",
    [
        "[" + "0," * (MOST_PARSED_VALUES + 1) + "0]",
        "[" + "[]," * MOST_ENTRIES + "[]]",
        "{" * (MOST_ENTRIES + 1),
        "[" * 1000,
        "[" * 90_000 + "]" * 90_000,
        '{"a":' * (MOST_DEPTH + 1) + "1" + "}" * (MOST_DEPTH + 1),
        "[",
        "",
    ],
    ids=["values", "lists", "objects without an end", "deep without an end", "very deep", "deep", "no JSON", "nothing"],
)
def test_a_text_within_a_request_has_bounds(text: str) -> None:
    """A text that is parsed as JSON is refused for its marks, its depth and its flaws in one way."""
    with pytest.raises(ValueError):
        BoundedJson().parse(text)


def test_texts_within_a_request_are_bounded_together() -> None:
    """Many small texts are as much as one large one; marks in their strings are none."""
    reader = BoundedJson()
    half = "[" + "0," * (MOST_PARSED_VALUES // 2) + "0]"
    assert reader.parse(json.dumps("," * MOST_PARSED_VALUES)) == "," * MOST_PARSED_VALUES
    assert len(reader.parse(half)) == len(reader.parse(half)) == MOST_PARSED_VALUES // 2 + 1
    with pytest.raises(ValueError, match="too many values"):
        reader.parse("[0,0]")


@given(JSON)
def test_what_is_within_the_bounds_is_parsed(value: Any) -> None:
    """The value is the parser's own."""
    assert BoundedJson().parse(json.dumps(value)) == value
