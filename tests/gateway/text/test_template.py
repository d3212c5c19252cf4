"""Chat templates as the engines render them."""

import json
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from gateway.text.template import NODES_AT_ONCE, ChatTemplate, TemplateRejected
from tests.gateway.model_dir import CHATML

PARTS = (
    "{% for m in messages %}[{{ m.role }}]{% for part in m.content %}{{ part.text }};{% endfor %}"
    "{% generation %}{% if loop.last %}!{% endif %}{% endgeneration %}{% endfor %}"
)
LLAMA = (
    "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate') }}{% endif %}"
    "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'].strip() + ' [/INST]' }}"
    "{% else %}{{ ' ' + message['content'].strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)
BREAKING = "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}\n    {{ m | tojson }}\n{% endfor %}"
CALLS = (
    "{% for m in messages %}{{ m.content }}{% for call in m.tool_calls or [] %}"
    "{{ call.function.name }}{{ call.function.arguments | tojson }}{% endfor %}{% endfor %}"
)
VARIABLES = {"bos_token": "<s>", "eos_token": "</s>"}
TALK = [
    {"role": "user", "content": " Hi <b>&</b> "},
    {"role": "assistant", "content": "Žlutý 😀"},
    {"role": "user", "content": "more"},
]


@pytest.mark.parametrize("source", [CHATML, LLAMA, BREAKING])
@pytest.mark.parametrize("generation", [True, False])
def test_same_text_as_transformers(source: str, generation: bool) -> None:
    """The text is the one that transformers renders, which is what engines do."""
    rendered, _ = render_jinja_template([TALK], chat_template=source, add_generation_prompt=generation, **VARIABLES)
    assert ChatTemplate(source, VARIABLES).render(TALK, add_generation_prompt=generation) == rendered[0]


@pytest.mark.parametrize("content", [None, "", [], [{"type": "text", "text": "ab"}], "ab", ["a", {"text": "b"}]])
def test_content_spellings(content: Any) -> None:
    """A template gets text, or parts where it loops over parts, whichever the client sent."""
    text = ChatTemplate(CHATML, {}).render([{"role": "user", "content": content}], add_generation_prompt=False)
    assert text in (
        "<|im_start|>user\n<|im_end|>\n",
        "<|im_start|>user\nab<|im_end|>\n",
        "<|im_start|>user\na\nb<|im_end|>\n",
    )
    parts = ChatTemplate(PARTS, {}).render([{"role": "user", "content": content}])
    assert parts.replace(";", "").replace("!", "") in ("[user]", "[user]ab")


def test_tool_calls() -> None:
    """Arguments, which clients send as JSON text, reach the template as objects."""
    call = {"function": {"name": "f", "arguments": '{"a": "é"}'}}
    messages = [{"role": "assistant", "content": None, "tool_calls": [call, {"function": {"name": "g"}}]}]
    assert ChatTemplate(CALLS, {}).render(messages) == 'f{"a": "é"}g{}'
    assert ChatTemplate(CALLS, {}).render([{"role": "assistant", "content": "x", "tool_calls": []}]) == "x"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ raise_exception('Not so') }}", "Not so"),
        ("{{ messages[7].content.x }}", "UndefinedError"),
        ("{{ 1 + messages[0].content }}", "TypeError"),
        ("{{ ''.__class__.__mro__ }}", "SecurityError"),
        ("{{ 1 // 0 }}", "ZeroDivisionError"),
        ("{% set _ = messages.append(1) %}", "SecurityError"),
    ],
)
def test_refusals(source: str, reason: str) -> None:
    """Whatever a template does with a client's values, the client gets a reason and the gateway goes on."""
    with pytest.raises(TemplateRejected, match=reason):
        ChatTemplate(source, {}).render(TALK)


def test_no_template() -> None:
    """A broken template is refused when it is loaded, with its line."""
    with pytest.raises(TemplateRejected, match="line 2"):
        ChatTemplate("x\n{% if %}", {})


@pytest.mark.parametrize(("content", "end"), [("It is", "It is"), (" It is ", "It is "), ("a\n", "a\n")])
def test_continue_final_message(content: str, end: str) -> None:
    """The text ends with the final message's content, its own trailing space too where the template keeps it."""
    messages = [{"role": "user", "content": content}, {"role": "assistant", "content": content}]
    text = ChatTemplate(CHATML, {}).render(messages, add_generation_prompt=False, continue_final_message=True)
    assert text.endswith(end)
    assert text.count("<|im_end|>") == 1


def test_nothing_to_continue() -> None:
    """An empty final message cannot be continued."""
    with pytest.raises(TemplateRejected):
        ChatTemplate(CHATML, {}).render([{"role": "assistant", "content": ""}], continue_final_message=True)


def test_client_values() -> None:
    """A client's values reach the template, and cannot stand in for its own variables."""
    template = ChatTemplate("{{ thinking }}{{ documents[0].t }}", {})
    assert template.render(TALK, documents=[{"t": "d"}], values={"thinking": "no"}) == "nod"
    silent = ChatTemplate("{{ a is defined }}{{ b is defined }}", {})
    assert silent.render(TALK, values={"a": None, "b": "auto"}) == "FalseFalse"
    with pytest.raises(TemplateRejected) as caught:
        template.render(TALK, values={"tools": []})
    assert caught.value.param == "chat_template_kwargs"


def test_a_template_of_its_own_for_tools() -> None:
    """Requests with tools get the template for those; without another one they are the only ones."""
    template = ChatTemplate("plain", {}, with_tools="tools")
    assert (template.render(TALK), template.render(TALK, tools=[])) == ("plain", "plain")
    assert template.render(TALK, tools=[{"function": {"name": "f"}}]) == "tools"
    with pytest.raises(TemplateRejected, match="with tools alone"):
        ChatTemplate(None, {}, with_tools="tools").render(TALK)


def test_time() -> None:
    """Templates can ask for the time."""
    assert ChatTemplate("{{ strftime_now('%Y') }}", {}).render(TALK) >= "2024"


def test_json_is_spelt_alike_in_one_go_and_in_pieces() -> None:
    """A large value is spelt in pieces, with the same text."""
    template = ChatTemplate("{{ x | tojson }}", {})
    for count in (3, NODES_AT_ONCE + 1):
        value = {"é": [{"a": number, "b": None, "c": "\n</s>"} for number in range(count)], "d": (1.5, True)}
        text = template.render(TALK, values={"x": value})
        assert text == json.dumps(value, ensure_ascii=False)
