"""Token counts are found in the answers of several APIs."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.passthrough.usage import UsageReader


@pytest.mark.parametrize(
    ("events", "counts"),
    [
        ([{"choices": []}], (None, None)),
        ([{"usage": None}, {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 7}}], (5, 7)),
        (
            [
                {"type": "message_start", "message": {"usage": {"input_tokens": 9, "output_tokens": 1}}},
                {"type": "message_delta", "usage": {"output_tokens": 30}},
            ],
            (9, 30),
        ),
        ([{"type": "response.completed", "response": {"usage": {"input_tokens": 3, "output_tokens": 4}}}], (3, 4)),
        ([{"usage": {"prompt_tokens": "many", "completion_tokens": -1}}], (None, None)),
        ([{"usage": {"prompt_tokens": 12, "total_tokens": 12}}], (12, None)),
    ],
)
def test_counts(events: list[object], counts: tuple[int | None, int | None]) -> None:
    """The last count of each kind holds, however the stream is cut."""
    data = b"".join(b"data: " + orjson.dumps(event) + b"\n\n" for event in events) + b"data: [DONE]\n\n"
    for size in (1, 7, len(data)):
        reader = UsageReader()
        for start in range(0, len(data), size):
            reader.feed(data[start : start + size])
        assert (reader.prompt_tokens, reader.completion_tokens) == counts


@given(st.binary(max_size=200))
def test_anything_else_is_left_alone(data: bytes) -> None:
    """No bytes do any harm."""
    reader = UsageReader()
    reader.read(data)
    reader.feed(b'data: {"usage":' + data + b"\n\n")
    reader.feed(b'data: ["usage"]\n\n')
    assert reader.completion_tokens is None or reader.completion_tokens >= 0
