"""Reasoning between tags, and calls in the text after it, whatever the pieces."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.text.parsers.output import PartsWanted
from gateway.text.parsers.registry import REASONING_PARSERS, TOOL_PARSERS
from tests.gateway.text.parsers.reading import Read, new_reader, read
from tests.gateway.text.test_stops import cut

QUICK = settings(max_examples=25)
POINTS = st.lists(st.integers(0, 200), max_size=12)
CALL = '<tool_call>\n{"name": "get", "arguments": {}}\n</tool_call>'
CALLED = (("get", "{}"),)
WORDS = (
    "zeta ",
    "quux",
    "\n",
    " ",
    '{"name": "get", "arguments": {"city": "',
    '"}}',
    "[get(city='",
    "')]",
    "get",
    "}",
    '"',
)
DIALECTS = sorted({str(dialect): name for name, dialect in TOOL_PARSERS.items()}.values())
"""One name for each of the dialects."""


def marks_of(name: str) -> list[str]:
    """Return what markup a dialect has."""
    dialect = TOOL_PARSERS[name]
    marks = list((dialect("") if callable(dialect) else dialect).marks)
    return [
        *marks,
        "<parameter=city>",
        '<parameter name="city">',
        "</parameter>",
        "</function>",
        "</invoke>",
        "<think>",
    ]


@pytest.mark.parametrize(
    ("text", "opening", "expected"),
    [
        ("<think>so</think>yes", "", Read("yes", "so")),
        ("\n<think>\nso\n</think>\n\nyes", "", Read("yes", "so")),
        ("so</think>yes", "<think>", Read("yes", "so")),
        ("so</think>yes", "a <think>b</think> c<think>\n", Read("yes", "so")),
        ("yes", "<think>\n\n</think>\n\n", Read("yes")),
        ("<thin", "", Read("<thin")),
        ("<think>never </thi", "", Read("", "never </thi")),
        ("<think>never ", "", Read("", "never ")),
        ("", "<think>", Read("")),
        ("a<think>b</think>", "", Read("a<think>b</think>")),
        ("a </think>b", "", Read("a b")),
        ("<think>x</think>\n\n  indented\n", "", Read("  indented\n", "x")),
        ("<think></think>\n", "", Read("")),
        (" \n", "", Read(" \n")),
    ],
)
def test_think(text: str, opening: str, expected: Read) -> None:
    """Reasoning is what the tags enclose that stand first, in the answer or at the prompt's end, for any pieces."""

    @QUICK
    @given(POINTS)
    def check(at: list[int]) -> None:
        assert read(new_reader(None, "think", opening=opening), cut(text, at)) == expected

    check()


@pytest.mark.parametrize("opening", ["<|im_start|>assistant\n", "<|im_start|>assistant\n<think>\n"])
@pytest.mark.parametrize("name", ["deepseek_r1", "qwen3", "glm45", "kimi_k2", "minimax_m2"])
def test_answers_that_lack_the_opening_tag(name: str, opening: str) -> None:
    """Parsers of models that always think take an answer's beginning for reasoning, with the opening tag or without."""
    for text in ("so</think>yes", "<think>so</think>yes"):
        for pieces in ([text], list(text)):
            assert read(new_reader(None, name, opening=opening), pieces) == Read("yes", "so")
    assert read(new_reader(None, name, opening=opening), ["still"]) == Read("", "still")


@pytest.mark.parametrize("name", ["deepseek_r1", "qwen3", "think"])
def test_prompt_that_closed_the_reasoning(name: str) -> None:
    """Where the prompt has closed the reasoning the answer is content, and a closing tag too many is no text."""
    assert read(new_reader(None, name, opening="<think>\n\n</think>\n\n"), ["so</think>yes"]) == Read("soyes")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"<think>so\n{CALL}", Read("", "so", CALLED)),
        (f"<think>so\n{CALL}\n{CALL}\n", Read("", "so", CALLED * 2)),
        (f"<think>so {CALL}</think>\n", Read("", "so", CALLED)),
        (f"<think>so {CALL} no</think>yes", Read("yes", f"so {CALL} no")),
        (f"<think>so {CALL}</think>yes", Read("yes", f"so {CALL}")),
        (f"<think>so {CALL}</think>{CALL}", Read("", f"so {CALL}", CALLED)),
        ("<think>the <tool_call> tag</think>yes", Read("yes", "the <tool_call> tag")),
        ('<think>so <tool_call>{"name": "get", "argu', Read("", 'so <tool_call>{"name": "get", "argu')),
        (
            '<think>so <tool_call>{"name": "unknown", "arguments": {}}</tool_call>',
            Read("", 'so <tool_call>{"name": "unknown", "arguments": {}}</tool_call>'),
        ),
    ],
)
def test_calls_within_reasoning(text: str, expected: Read) -> None:
    """A call in reasoning that nothing but calls follows is one; any other was only thought of."""

    @QUICK
    @given(POINTS)
    def check(at: list[int]) -> None:
        assert read(new_reader("hermes", "think"), cut(text, at)) == expected

    check()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"\n\n{CALL}\n\n{CALL}\n", Read("", "", CALLED * 2)),
        (f"Sure.\n{CALL}\n", Read("Sure.", "", CALLED)),
        (f"a{CALL}\nb", Read("a\nb", "", CALLED)),
        (f"<think>x</think>\n \n{CALL}", Read("", "x", CALLED)),
    ],
)
def test_blanks_beside_calls(text: str, expected: Read) -> None:
    """White space that sets calls apart is no content, in no piece of a stream either."""

    @QUICK
    @given(POINTS)
    def check(at: list[int]) -> None:
        reader = new_reader("hermes", "think")
        parts = [*map(reader.push, cut(text, at)), reader.flush()]
        assert not [part.content for part in parts if part.content.isspace()] or expected.content
        assert read(new_reader("hermes", "think"), cut(text, at)) == expected

    check()


def test_wanted_parts() -> None:
    """Reasoning and second calls are left out for clients that want none."""
    reader = new_reader("hermes", "think", wanted=PartsWanted(reasoning=False, parallel_calls=False))
    assert read(reader, [f"<think>so</think>{CALL}{CALL}"]) == Read("", "", CALLED)


@pytest.mark.parametrize("name", DIALECTS)
@QUICK
@given(st.data())
def test_pieces_never_matter(name: str, data: st.DataObject) -> None:
    """Any text is read without an error, alike for any pieces; where it holds no call all its words come out."""
    text = "".join(data.draw(st.lists(st.sampled_from([*WORDS, *marks_of(name)]), max_size=24)))
    thinking = data.draw(st.sampled_from([None, "think", "qwen3"]))
    whole = read(new_reader(name, thinking), [text])
    assert read(new_reader(name, thinking), list(text)) == whole
    assert read(new_reader(name, thinking), cut(text, data.draw(POINTS))) == whole
    if not whole.calls:
        for word in ("zeta", "quux"):
            assert (whole.content + whole.reasoning).count(word) == text.count(word)


@pytest.mark.parametrize("name", sorted(REASONING_PARSERS))
def test_reasoning_parsers_pass_text_on(name: str) -> None:
    """Every reasoning parser reads a plain answer after the prompt closed its reasoning."""
    thinking = REASONING_PARSERS[name]
    tags = (thinking("") if callable(thinking) else thinking).tags[0]
    assert read(new_reader(None, name, opening="".join(tags)), ["Hello ", "you"]) == Read("Hello you")
