"""gpt-oss's channels, whatever the pieces."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.text.parsers.cursor import CONTROL
from gateway.text.parsers.harmony import TOKENS
from tests.gateway.text.parsers.reading import Read, new_reader, read

WORDS = (
    *(CONTROL + token for token in TOKENS),
    *TOKENS,
    "analysis",
    "final",
    "commentary",
    " to=functions.get",
    " json",
)


def mark(text: str) -> str:
    """Return the text with its tokens as control tokens."""
    for token in TOKENS:
        text = text.replace(token, CONTROL + token)
    return text


ANSWER = mark(
    "<|channel|>analysis<|message|>so<|end|><|start|>assistant<|channel|>commentary to=functions.get "
    '<|constrain|>json<|message|>{"city": "x"}<|call|><|start|>assistant<|channel|>final<|message|>Done'
)


def test_headers_cut_anywhere() -> None:
    """API-121: reasoning, calls and text come apart at their channels wherever the text is cut."""
    whole = Read("Done", "so", (("get", '{"city": "x"}'),))
    for at in range(len(ANSWER) + 1):
        assert read(new_reader("openai", controls=TOKENS), [ANSWER[:at], ANSWER[at:]]) == whole
    assert read(new_reader("openai", controls=TOKENS), list(ANSWER)) == whole


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (mark("<|channel|>final<|message|>The <|en") + "d|> token", Read("The <|end|> token")),
        (mark("<|channel|>??<|end|><|start|>assistant<|channel|>final<|message|>yes"), Read("??yes")),
        (mark("<|channel|>final<|message|>a<|channel|>analysis<|message|>b"), Read("a", "b")),
        (mark("<|channel|>commentary to=functions.get<|message|>{broken"), Read("functions.get {broken")),
        (mark("<|channel|>commentary to=functions.get<|message|>"), Read("")),
        (mark("<|channel|>commentary to=browser.search<|message|>{}<|call|>"), Read("{}")),
        ("", Read("")),
    ],
)
def test_odd_messages(text: str, expected: Read) -> None:
    """What is no message as the format has it loses no text; letters that look like tokens are letters."""
    text = text.replace("<|en" + "d|> token", "<|end|> token")
    for pieces in ([text], list(text)):
        assert read(new_reader("openai", controls=TOKENS), pieces) == expected


@settings(max_examples=40)
@given(st.lists(st.sampled_from([*WORDS, "quux ", "{", "}", '"', "\n"]), max_size=20).map("".join))
def test_any_text(text: str) -> None:
    """Any text is read without an error, alike for any pieces."""
    assert read(new_reader("openai", controls=TOKENS), list(text)) == read(
        new_reader("openai", controls=TOKENS), [text]
    )


def test_calls_that_are_not_read() -> None:
    """Without tools in the request what is said to a function is content."""
    text = mark('<|channel|>commentary to=functions.get<|message|>{"a": 1}<|call|>')
    assert read(new_reader(None, "openai_gptoss", controls=TOKENS), [text]) == Read('{"a": 1}')
