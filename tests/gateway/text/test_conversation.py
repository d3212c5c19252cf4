"""Messages and tools as a chat template gets them."""

import json
from typing import Any

import pytest

from gateway.text.conversation import as_engines_take, read_conversation, read_tools, without_developers
from gateway.text.shapes import SHAPES, call, result, role, says, text, user
from gateway.text.template import ChatTemplate
from tests.conformance_run.own_templates import OWN_TEMPLATES
from tests.conformance_run.prompts import render_here
from tests.conformance_run.record import RECORDING
from tests.conformance_run.templates import OWN_READINGS, SPECIAL

RECORDED: dict[str, dict[str, str | None]] = json.loads(RECORDING.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", OWN_TEMPLATES)
def test_prompts_are_those_of_vllm(name: str) -> None:
    """Every shape of conversation gives the prompt that vLLM's renderer was recorded to make, or is refused too."""
    template = ChatTemplate(OWN_TEMPLATES[name], SPECIAL)
    shapes = SHAPES.keys() - OWN_READINGS
    assert RECORDED[name].keys() == SHAPES.keys()
    assert {s: render_here(template, SHAPES[s]) for s in shapes} == {s: RECORDED[name][s] for s in shapes}


@pytest.mark.parametrize("content", ["Rain\n7 °C", [text("Rain"), text("7 °C")], ["Rain", "7 °C"]])
@pytest.mark.parametrize("parts", [True, False])
def test_a_tool_result_is_text(content: Any, parts: bool) -> None:
    """A tool's result reaches any template as text, its parts one a line."""
    (read,) = read_conversation([result(content)], parts)
    assert read == {"role": "tool", "tool_call_id": "call_1", "content": "Rain\n7 °C"}


def test_a_result_may_name_tools() -> None:
    """A result that refers to tools stays in parts, for templates that spell them out."""
    named = [text("found"), {"type": "tool_reference", "name": "clock"}]
    assert read_conversation([result(named)], True)[0]["content"] == named
    assert read_conversation([result(named)], False)[0]["content"] == "found\nclock"


@pytest.mark.parametrize(
    ("messages", "system"),
    [
        ([role("developer", "D"), user("U")], "D"),
        ([role("system", "S"), role("developer", "D"), user("U")], "S\n\nD"),
        ([user("U"), role("developer", "D"), role("system", "S")], "D\n\nS"),
        ([role("developer", [text("D"), text("E")]), role("developer", "F"), user("U")], "D\nE\n\nF"),
        ([role("developer", ""), user("U"), role("developer", "D")], "D"),
    ],
)
@pytest.mark.parametrize("parts", [True, False])
def test_developers_become_the_system(messages: Any, system: str, parts: bool) -> None:
    """For a template without developers, all that they and the system say is one first message; nothing is dropped."""
    read = without_developers(read_conversation(messages, parts))
    assert [message["role"] for message in read] == ["system", "user"]
    content = read[0]["content"]
    assert content == system or "\n".join(part["text"] for part in content) == system
    assert "tools" not in read[0]


def test_developers_stay_where_they_are_known() -> None:
    """A template that knows developers gets their messages unchanged."""
    template = ChatTemplate("{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}{# 'developer' #}", {})
    assert template.render([user("U"), role("developer", "D")]) == "user:U;developer:D;"


@pytest.mark.parametrize(
    ("arguments", "read", "unread"),
    [
        ('{"a": "b', {}, 1),
        ("[]", {}, 1),
        ('"text"', {}, 1),
        ("42", {}, 1),
        ('{"a": "\t"}', {}, 1),
        ("null", {}, 0),
        ([1], {}, 1),
        ("", {}, 0),
        (None, {}, 0),
        ({"a": 1}, {"a": 1}, 0),
        ('{"a": "é"}', {"a": "é"}, 0),
    ],
)
def test_arguments_become_an_object(arguments: Any, read: dict[str, Any], unread: int) -> None:
    """Arguments that are no JSON object read as an empty one, and are counted, so that the conversation can go on."""
    noted: list[None] = []
    messages = read_conversation([says(None, tool_calls=[call(arguments)])], False, lambda: noted.append(None))
    assert messages[0]["tool_calls"][0]["function"]["arguments"] == read
    assert len(noted) == unread


@pytest.mark.parametrize(
    "message",
    [
        says("A", reasoning="T"),
        says("A", reasoning_content="T"),
        says("A", reasoning="T", reasoning_content="other"),
        says([{"type": "thinking", "thinking": "T", "signature": "s"}, text("A")]),
        says([{"type": "reasoning", "text": "T"}, {"type": "redacted_thinking", "data": "x"}, text("A")]),
    ],
)
@pytest.mark.parametrize("parts", [True, False])
def test_reasoning_has_both_names(message: dict[str, Any], parts: bool) -> None:
    """What the model thought reaches templates by either name, however it was sent; the content is without it."""
    (read,) = read_conversation([message], parts)
    assert (read["reasoning"], read["reasoning_content"]) == ("T", "T")
    assert read["content"] == ([text("A")] if parts else "A")


BILLING = "x-anthropic-billing-header: cc_version=2.1; cch=%s;"


@pytest.mark.parametrize("mark", ["0f1", "9ac"])
@pytest.mark.parametrize("parts", [True, False])
def test_the_billing_line_is_dropped(mark: str, parts: bool) -> None:
    """A system text loses the line that changes with each request, alone or at its start; a user's text keeps it."""
    line = BILLING % mark
    for content in ([text(line), text("Be brief.")], f"{line}\nBe brief.", [text(f"{line}\nBe brief.")]):
        (read,) = read_conversation([role("system", content)], parts)
        assert read["content"] == ([text("Be brief.")] if parts else "Be brief.")
    (read,) = read_conversation([user(line)], False)
    assert read["content"] == line


ODD = [user(None), user(["a", "b"]), says("A", tool_calls=[{"function": {"name": "f", "arguments": {"a": 1}}}])]


@pytest.mark.parametrize("messages", [ODD, *(body["messages"] for body in SHAPES.values())])
@pytest.mark.parametrize("parts", [True, False])
def test_engines_get_the_same_messages(messages: Any, parts: bool) -> None:
    """What engines are asked about says what the client's messages say."""
    spelled = read_conversation(as_engines_take(messages), parts)
    plain = read_conversation(messages, parts)
    for message in [*spelled, *plain]:
        for made in message.get("tool_calls", ()):
            made |= {"id": "", "type": ""}
        if message["content"] in ("", [], [text("")]):
            message["content"] = None
    assert spelled == plain


def test_only_known_fields_reach_a_template() -> None:
    """A message's unknown fields stay out, and a part's own ones beside its text go in, as engines have it."""
    part = {**text("A"), "cache_control": {"type": "ephemeral"}}
    (read,) = read_conversation([{**user([part]), "name": "n", "odd": 1, "tool_calls": []}], True)
    assert read == {"role": "user", "content": [part], "name": "n"}
    assert read_conversation([user(["", "A", ""])], False)[0]["content"] == "A"


def test_tools_have_one_form() -> None:
    """A tool's fields come in one order, without unknown ones, and with null for what it does not describe."""
    tool = {"vendor": 1, "function": {"strict": True, "parameters": {"b": 1, "a": 2}, "name": "f", "odd": 1}}
    (read,) = read_tools([tool]) or []
    assert json.dumps(read) == (
        '{"type": "function", "function": {"name": "f", "description": null, "parameters": {"b": 1, "a": 2}, '
        '"strict": true}}'
    )
    assert read_tools([]) is None and read_tools(None) is None
