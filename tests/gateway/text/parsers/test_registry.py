"""Parsers by their names."""

from importlib.metadata import EntryPoint, EntryPoints

import pytest

from gateway.text.parsers import registry
from gateway.text.parsers.cursor import CONTROL, Cursor, Steps
from gateway.text.parsers.guess import guess_parsers
from gateway.text.parsers.output import Call
from gateway.text.parsers.registry import UnknownParser, find_parsers
from gateway.text.parsers.schema import Tools
from gateway.text.parsers.tagged import ToolDialect
from tests.gateway.text.parsers.reading import Read, new_reader, read


def read_bare(cursor: Cursor, tools: Tools) -> Steps[list[Call] | None]:
    """Read a call that says no more than that it is one."""
    yield from ()
    return [Call("get", "{}")]


BARE = ToolDialect({"<call>": read_bare})


def test_installed_parsers(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package adds parsers by an entry point."""
    entry = EntryPoint("bare", f"{__name__}:BARE", "pdd_gateway.tool_parsers")
    monkeypatch.setattr(registry, "entry_points", lambda group: EntryPoints([entry]).select(group=group))
    assert read(new_reader("bare"), ["a<call>b"]) == Read("ab", "", (("get", "{}"),))


@pytest.mark.parametrize("names", [("nope", None), (None, "nope")])
def test_unknown_names(names: tuple[str | None, str | None]) -> None:
    """A name that is not known is refused, and those that are known are named."""
    with pytest.raises(UnknownParser, match=r"_parser 'nope' is none of.*'none'"):
        find_parsers(*names, ())


def test_no_parsers() -> None:
    """Nothing is read where no parser is asked for."""
    assert find_parsers("none", "none", ()).make_reader("", []) is None
    assert not find_parsers(None, None, ()).reads_tools


def test_control_tokens_are_shown_to_readers() -> None:
    """Readers see the control tokens that their parsers know, marked where letters that look alike are only letters."""
    assert find_parsers("kimi_k2", None, ("<|tool_call_begin|>", "<|im_end|>")).shown == {
        "<|tool_call_begin|>": "<|tool_call_begin|>"
    }
    assert find_parsers("mistral", None, ("[ARGS]", "</s>")).shown == {"[ARGS]": f"{CONTROL}[ARGS]"}
    assert find_parsers("mistral", None, ()).shown == {}


@pytest.mark.parametrize(
    ("template", "names"),
    [
        ("{{ messages }}", (None, None)),
        ("<tool_call> {{ tool_call.arguments | tojson }} </tool_call> <think>", ("hermes", "think")),
        ("<tool_call>\n<function= <parameter= </think>", ("qwen3_coder", "think")),
        ("<think> <arg_key> <arg_value> <tool_call>", ("glm45", "think")),
        ("<|start|>assistant<|channel|>final<|message|>", ("openai", "openai_gptoss")),
        ("']<]minimax[>[' ~ '<tool_call>' arguments", ("none", None)),
        ("<seed:tool_call>\n<function= <parameter= <seed:think>", ("seed_oss", "seed_oss")),
        ("[TOOL_CALLS] [THINK]", ("mistral", "mistral")),
        ("<|start_header_id|> '\"parameters\": '", ("llama3_json", None)),
        ("<｜tool▁sep｜>function\n```json", ("deepseek_v3", None)),
        ("<｜tool▁sep｜> </think>", ("deepseek_v31", "think")),
        ("<|tool_call_begin|> <|tool_call_argument_begin|>", ("kimi_k2", None)),
        ("<minimax:tool_call> <think>", ("minimax_m2", "think")),
    ],
)
def test_guesses(template: str, names: tuple[str | None, str | None]) -> None:
    """A template says how its model spells calls and reasoning."""
    assert guess_parsers(template) == names
