"""Calls with JSON in them: odd spellings, and blocks that are none."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.gateway.text.parsers.reading import Read, new_reader, read
from tests.gateway.text.parsers.test_tagged import POINTS, QUICK
from tests.gateway.text.test_stops import cut

CALLS = (
    'Sure.\n<tool_call>\n{"name": "get", "arguments": {"a": "}</tool_call> \\" \\\\", "b": [1, {}]}}\n</tool_call>\n'
    '<tool_call>{"name":"p\\u0075t","arguments":{}}</tool_call>'
)


@QUICK
@given(POINTS)
def test_exact_arguments(at: list[int]) -> None:
    """Calls come out with their names and exact arguments, for any pieces."""
    content, _, calls = read(new_reader("hermes"), cut(CALLS, at))
    assert content == "Sure."
    assert [name for name, _ in calls] == ["get", "put"]
    assert json.loads(calls[0][1]) == {"a": '}</tool_call> " \\', "b": [1, {}]}
    assert calls[1][1] == "{}"


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("no call", "no call", ()),
        ("<tool_call>not json</tool_call>.", "<tool_call>not json</tool_call>.", ()),
        ('<tool_call>{"x": 1}</tool_call>', '<tool_call>{"x": 1}</tool_call>', ()),
        ("a <tool_cal", "a <tool_cal", ()),
        ("a <tool_call>", "a", ()),
        ('<tool_call>{"name": "f', '<tool_call>{"name": "f', ()),
        (
            '<tool_call>{"name": "f", "arguments": {"a": 1',
            '<tool_call>{"name": "f", "arguments": {"a": 1',
            (),
        ),
        ('<tool_call>{"arguments": {"a": "é"}, "name": "f"}</tool_call>', "", (("f", '{"a": "é"}'),)),
        ('<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', "", (("f", '{"a": 1}'),)),
        ('<tool_call>{"name": "f"}</tool_call>bye', "bye", (("f", "{}"),)),
        ('<tool_call>{"name": "f", "arguments": null}</tool_call>', "", (("f", "{}"),)),
        (
            '<tool_call>{"name": "f", "args": {"a": 1}}</tool_call>',
            '<tool_call>{"name": "f", "args": {"a": 1}}</tool_call>',
            (),
        ),
        (
            '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
            '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
            (),
        ),
        (
            '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>',
            '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>',
            (),
        ),
        ('<tool_call>{"name": "f", "arguments": {"a": "1\n2"}}</tool_call>', "", (("f", '{"a": "1\\n2"}'),)),
        (
            '<tool_call>{"name": "f", "arguments": {"a": 1e20, "b": 12345678901234567890123}}</tool_call>',
            "",
            (("f", '{"a": 1e20, "b": 12345678901234567890123}'),),
        ),
        ('<tool_call>{"name": "\\ud83d"}</tool_call>', '<tool_call>{"name": "\\ud83d"}</tool_call>', ()),
        (
            '<tool_call>{"name": "\\q", "arguments": {}}</tool_call>',
            '<tool_call>{"name": "\\q", "arguments": {}}</tool_call>',
            (),
        ),
    ],
)
def test_unusual_blocks(text: str, content: str, calls: tuple[tuple[str, str], ...]) -> None:
    """Blocks that are no calls, and calls that are cut, stay text; other orders and spellings are read."""

    @QUICK
    @given(POINTS)
    def check(at: list[int]) -> None:
        assert read(new_reader("hermes"), cut(text, at)) == Read(content, "", calls)

    check()


@pytest.mark.parametrize(
    "block", ["[" * 1000, "[" * 90_000 + "]" * 90_000, '{"name":' * 5000, '{"arguments":' + "[0" * 40_000]
)
def test_a_block_that_is_too_much_json_is_text(block: str) -> None:
    """What a model writes as a call is parsed within bounds; beyond them it is text like any other."""
    text = f"<tool_call>{block}</tool_call>"
    assert read(new_reader("hermes", "think"), [text]) == Read(text)


@pytest.mark.parametrize(
    ("parser", "opening"),
    [
        ("hermes", "<tool_call>"),
        ("llama3_json", ""),
        ("mistral", "[TOOL_CALLS]"),
        ("gemma4", "<|tool_call>call:get"),
        ("pythonic", "[get(x="),
    ],
)
def test_depth_never_escapes(parser: str, opening: str) -> None:
    """Arguments that are nested beyond reason are text, and no error."""
    for bracket, close in (("{", "}"), ("[", "]")):
        for text in (
            f'{opening}{{"name": "get", "arguments": {{"a": ' + bracket * 100_000 + close * 100_000 + "}}",
            f"{opening}{bracket * 50_000}{close * 50_000})]",
        ):
            assert "[" in read(new_reader(parser), [text]).content or "{" in read(new_reader(parser), [text]).content


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            '{"name": "get", "parameters": {"city": "x"}}; {"name": "put", "parameters": {}}',
            (("get", '{"city": "x"}'), ("put", "{}")),
        ),
        ('{"name": "Oslo", "parameters": {}}', ()),
    ],
)
def test_bare_json(text: str, expected: tuple[tuple[str, str], ...]) -> None:
    """Where only a JSON object marks a call it has to name a tool that is offered."""
    assert read(new_reader("llama3_json"), list(text)) == Read("" if expected else text, "", expected)


@QUICK
@given(st.text('<tolca_/>{"\\}x \n', max_size=60), POINTS)
def test_never_fails(text: str, at: list[int]) -> None:
    """Any text is read without an error and alike for any pieces."""
    assert read(new_reader("hermes", "think"), cut(text, at)) == read(new_reader("hermes", "think"), [text])


def test_ids_that_templates_want_back() -> None:
    """Mistral's templates take ids of nine letters and digits, Kimi's the model's own."""
    reader = new_reader("mistral")
    (call,) = [*reader.push("[TOOL_CALLS]get[ARGS]{}").calls, *reader.flush().calls]
    assert call.id is not None
    assert len(call.id) == 9
    assert call.id.isalnum()
    reader = new_reader("kimi_k2")
    (call,) = reader.push("<|tool_call_begin|>functions.get:3<|tool_call_argument_begin|>{}<|tool_call_end|>").calls
    assert call.id == "functions.get:3"
