"""Large bodies are parsed in steps, and mean what they mean to a parser that takes them in one."""

from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.errors import GatewayError
from gateway.http.body import load, parse_object

NUMBERS = st.lists(st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False), max_size=40)
VALUES = NUMBERS | st.lists(NUMBERS, max_size=3) | st.lists(st.text(max_size=5) | st.none(), max_size=5) | st.text()
PIECES = st.lists(st.sampled_from([b"1", b"23", b",", b" ", b"[", b"]", b"-", b".", b'"', b"e", b"null"]), max_size=30)


def outcome(body: bytes, step_bytes: int | None) -> Any:
    """What comes of a body; ``step_bytes`` None: in one step."""
    try:
        return orjson.loads(body) if step_bytes is None else load(body, step_bytes)
    except orjson.JSONDecodeError as error:
        return str(error)


@given(st.dictionaries(st.text(max_size=5), VALUES, max_size=5), st.integers(1, 60))
def test_steps_change_no_value(value: dict[str, Any], step_bytes: int) -> None:
    """Whatever an object holds, and wherever its lists are cut, it is the same object."""
    for body in (orjson.dumps(value), orjson.dumps(value, option=orjson.OPT_INDENT_2)):
        assert outcome(body, step_bytes) == orjson.loads(body)


@given(PIECES, st.integers(1, 12))
@example([b"1", b","], 1)
@example([b"1", b",", b",", b"2"], 1)
def test_steps_change_no_error(pieces: list[bytes], step_bytes: int) -> None:
    """What is no JSON is refused with the same words."""
    for body in (b'{"prompt":[' + b"".join(pieces) + b"]}", b'{"a":1,"prompt":' + b"".join(pieces) + b"}"):
        assert outcome(body, step_bytes) == outcome(body, None)


@pytest.mark.parametrize(
    "body",
    [
        b'{"a":"\xff"}',
        b'{"a\xff":1}',
        b'{"a":"\\ud800"}',
        b"[1,2,3]",
        b'{"a":[1,2',
        b'{"a":' + b"[" * 5000,
        b"",
        b"null",
    ],
)
def test_bad_bodies_are_refused_as_ever(body: bytes) -> None:
    """Bytes that are no text, halves of characters, depth and what is no object: the parser's own error, or none."""
    assert outcome(body, 1) == outcome(body, None)


def test_a_long_prompt_of_ids_is_a_list_of_ids() -> None:
    """A body over the size of a step is cut, and keeps its rule about fields that come twice."""
    ids = list(range(60_000))
    assert parse_object(orjson.dumps({"model": "m", "prompt": ids})) == {"model": "m", "prompt": ids}
    twice = orjson.dumps({"prompt": ids})[:-1] + b',"prompt":"x"}'
    with pytest.raises(GatewayError, match="more than once"):
        parse_object(twice)
