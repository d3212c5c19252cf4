"""Reasoning and tool calls in text, whatever the pieces."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.text.message import MessageReader
from gateway.text.reasoning import ReasoningReader
from gateway.text.tools import ToolReader
from tests.gateway.text.test_stops import cut

points = st.lists(st.integers(0, 200), max_size=12)
CALLS = (
    'Sure.\n<tool_call>\n{"name": "get", "arguments": {"a": "}</tool_call> \\" \\\\", "b": [1, {}]}}\n</tool_call>\n'
    '<tool_call>{"name":"p\\u0075t","arguments":{}}</tool_call>'
)


def read(reader: MessageReader, pieces: list[str]) -> tuple[str, str, list[tuple[str, str]]]:
    """Return (reasoning, content, calls) of the text in pieces."""
    parts = [*(reader.push(piece) for piece in pieces), reader.flush()]
    calls: list[list[str]] = []
    for part in parts:
        for call in part.calls:
            if call.name is not None:
                assert call.id is not None
                assert call.index == len(calls)
                calls.append([call.name, ""])
            calls[call.index][1] += call.arguments
    reasoning = "".join(part.reasoning for part in parts)
    return reasoning, "".join(part.content for part in parts), [(name, arguments) for name, arguments in calls]


def new_reader() -> MessageReader:
    """Return a reader of both kinds of parts."""
    return MessageReader(ReasoningReader(begins_inside=False), ToolReader())


@pytest.mark.parametrize(
    ("text", "inside", "reasoning", "content"),
    [
        ("<think>so</think>yes", False, "so", "yes"),
        ("\n<think>\nso\n</think>\n\nyes", False, "\nso\n", "\n\nyes"),
        ("so</think>yes", True, "so", "yes"),
        ("yes </think> <think>", False, "", "yes </think> <think>"),
        ("<thin", False, "", "<thin"),
        ("<think>never </thi", False, "never </thi", ""),
        ("", True, "", ""),
        ("a<think>b</think>", False, "", "a<think>b</think>"),
    ],
)
def test_reasoning(text: str, inside: bool, reasoning: str, content: str) -> None:
    """Reasoning and content come apart at the tags, for any pieces."""

    @given(points)
    def check(at: list[int]) -> None:
        reader = MessageReader(ReasoningReader(begins_inside=inside), None)
        assert read(reader, cut(text, at)) == (reasoning, content, [])

    check()


@given(points)
def test_calls(at: list[int]) -> None:
    """Calls come out with their names and exact arguments, for any pieces; blank lines between them do not."""
    reader = MessageReader(None, ToolReader())
    _, content, calls = read(reader, cut(CALLS, at))
    assert content == "Sure.\n"
    assert [name for name, _ in calls] == ["get", "put"]
    assert json.loads(calls[0][1]) == {"a": '}</tool_call> " \\', "b": [1, {}]}
    assert calls[1][1] == "{}"
    assert reader.called


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("no call", "no call", []),
        ("<tool_call>not json</tool_call>.", "<tool_call>not json</tool_call>.", []),
        ('<tool_call>{"x": 1}</tool_call>', '<tool_call>{"x": 1}</tool_call>', []),
        ("a <tool_cal", "a <tool_cal", []),
        ('<tool_call>{"name": "f', '<tool_call>{"name": "f', []),
        ('<tool_call>{"name": "f", "arguments": {"a": 1', "", [("f", '{"a": 1')]),
        ('<tool_call>{"arguments": {"a": "é"}, "name": "f"}</tool_call>', "", [("f", '{"a": "é"}')]),
        ('<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', "", [("f", '{"a": 1}')]),
        ('<tool_call>{"name": "f"}</tool_call>bye', "bye", [("f", "{}")]),
        ('<tool_call>{"name": "\\ud83d"}</tool_call>', '<tool_call>{"name": "\\ud83d"}</tool_call>', []),
        (
            '<tool_call>{"name": "\\q", "arguments": {}}</tool_call>',
            '<tool_call>{"name": "\\q", "arguments": {}}</tool_call>',
            [],
        ),
    ],
)
def test_unusual_blocks(text: str, content: str, calls: list[tuple[str, str]]) -> None:
    """Blocks that are no calls stay text; other orders and spellings, and cut calls, are read as far as they go."""

    @given(points)
    def check(at: list[int]) -> None:
        assert read(MessageReader(None, ToolReader()), cut(text, at)) == ("", content, calls)

    check()


@given(st.text('<tolca_/>{"\\}x \n', max_size=60), points)
def test_never_fails(text: str, at: list[int]) -> None:
    """Any text is read without an error and alike for any pieces."""
    assert read(new_reader(), cut(text, at)) == read(new_reader(), [text])


def test_arguments_are_streamed() -> None:
    """Arguments are passed on as they come."""
    reader = ToolReader()
    reader.push('<tool_call>{"name": "f", "arguments": {"text": "')
    assert [call.arguments for call in reader.push("word")[1]] == ["word"]


@pytest.mark.parametrize(
    "block", ["[" * 1000, "[" * 90_000 + "]" * 90_000, '{"name":' * 5000, '{"arguments":' + "[0" * 40_000]
)
def test_a_block_that_is_too_much_json_is_text(block: str) -> None:
    """What a model writes as a call is parsed within bounds; beyond them it is text like any other."""
    text = f"<tool_call>{block}</tool_call>"
    assert read(new_reader(), [text]) == ("", text, [])
