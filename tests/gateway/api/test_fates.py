"""Every field of vLLM's requests has the fate that the table says; none that vLLM acts on is ignored in silence."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.api.fates import FATES, MESSAGES_FATES, RESPONSES_FATES, Fate
from gateway.api.fields import is_internal, read_fields
from gateway.api.messages import translate_messages
from gateway.api.responses import translate_response
from gateway.api.wire import ChatFields, CompletionFields, GenerationFields
from gateway.errors import GatewayError
from gateway.http.body import JsonObject
from gateway.text.shapes import PROMPT_FIELDS

RECORDED: dict[str, Any] = json.loads(Path(__file__).with_name("vllm_fields.json").read_text(encoding="utf-8"))
KINDS: dict[str, tuple[type[GenerationFields], JsonObject]] = {
    "chat": (ChatFields, {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}),
    "completions": (CompletionFields, {"model": "m", "prompt": "Hi"}),
}
ASKS: dict[str, Any] = {
    "logprob_token_ids": [1],
    "prompt_embeds": "AAAA",
    "prompt_logprobs": 1,
    "repetition_detection": {"max_pattern_size": 4},
    "return_prompt_text": True,
    "return_tokens_as_token_ids": True,
    "routed_experts_prompt_start": 3,
    "stream_interval": 5,
    "suffix": "x",
    "truncation_side": "right",
    "use_beam_search": True,
}
"""Values with which refused fields ask for something."""
TRANSLATED: dict[str, tuple[Callable[[JsonObject], JsonObject], JsonObject, dict[str, Fate]]] = {
    "messages": (
        translate_messages,
        {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]},
        MESSAGES_FATES,
    ),
    "responses": (translate_response, {"model": "m", "input": "Hi"}, RESPONSES_FATES),
}
VALUES: dict[str, Any] = {
    "chat_template_kwargs": {"enable_thinking": False},
    "include": ["reasoning.encrypted_content"],
    "input": [{"role": "user", "content": "Ho"}],
    "instructions": "Be brief.",
    "logit_bias": {"5": 1.0},
    "messages": [{"role": "user", "content": "Ho"}],
    "model": "other",
    "metadata": {"user_id": "u"},
    "output_config": {"effort": "low"},
    "prompt_cache_key": "k",
    "reasoning": {"effort": "low"},
    "stop": ["x"],
    "stop_sequences": ["x"],
    "stop_token_ids": [7],
    "stream": True,
    "system": "Be brief.",
    "text": {"format": {"type": "json_object"}},
    "thinking": {"type": "disabled"},
    "tool_choice": {"type": "auto"},
    "tools": [{"type": "custom", "name": "f", "input_schema": {"type": "object"}}],
    "truncation": "auto",
}
"""Values of obeyed fields that ask for something; for all others a number does."""
ANSWERED = {"include", "metadata", "previous_response_id", "store"}
"""Fields of responses that the answer goes by, and not the chat."""
TRANSLATED_PLACES = [(endpoint, name) for endpoint in TRANSLATED for name in RECORDED[endpoint]]
PLACES = [(endpoint, name) for endpoint in KINDS for name in RECORDED[endpoint]]


def test_every_field_of_vllm_stands_in_the_table() -> None:
    """The table has the fields of both recorded schemas and no others."""
    assert FATES.keys() == {*RECORDED["chat"], *RECORDED["completions"]}
    assert set(PROMPT_FIELDS) <= {name for name, fate in FATES.items() if fate == "obeyed"}


@pytest.mark.parametrize(("endpoint", "name"), [place for place in PLACES if FATES[place[1]] == "refused"])
def test_refused_fields_are_named(endpoint: str, name: str) -> None:
    """What cannot be given is a 400 with the field's name, and a value that asks for nothing is no harm."""
    kind, body = KINDS[endpoint]
    if name != "suffix":
        with pytest.raises(GatewayError) as caught:
            read_fields({**body, name: ASKS[name]}, kind)
        assert (caught.value.status, caught.value.param) == (400, name)
    nothing = {"stream_interval": 1, "truncation_side": "left"}.get(name)
    _, rest = read_fields({**body, name: nothing}, kind)
    assert rest == {}


@pytest.mark.parametrize(("endpoint", "name"), [place for place in PLACES if FATES[place[1]] != "refused"])
def test_other_fields_go_where_the_table_says(endpoint: str, name: str) -> None:
    """A field is read here, goes to the engine as it is, is the operator's, or is dropped."""
    kind, body = KINDS[endpoint]
    fate = FATES[name]
    assert is_internal(name) is (fate == "operator")
    if (endpoint, name) == ("chat", "echo"):
        with pytest.raises(GatewayError):
            read_fields({**body, "echo": True}, kind)
        assert read_fields({**body, "echo": False}, kind)[1] == {}
    elif fate == "obeyed":
        assert name in kind.__struct_fields__
    elif fate in ("engine", "ignored"):
        assert name not in kind.__struct_fields__
        _, rest = read_fields({**body, name: 1}, kind)
        assert rest == ({name: 1} if fate == "engine" else {})


def test_every_field_of_the_other_apis_stands_in_its_table() -> None:
    """The tables of messages and responses have the fields of their recorded schemas and no others."""
    for endpoint, (_, _, fates) in TRANSLATED.items():
        assert fates.keys() == set(RECORDED[endpoint])


@pytest.mark.parametrize(("endpoint", "name"), TRANSLATED_PLACES)
def test_fields_of_the_other_apis_go_where_their_tables_say(endpoint: str, name: str) -> None:
    """A field changes the chat that a body means, goes on to the engine, is refused by its name, or does nothing."""
    translate, body, fates = TRANSLATED[endpoint]
    fate = fates[name]
    assert is_internal(name) is (fate == "operator")
    if fate == "refused":
        with pytest.raises(GatewayError) as caught:
            translate({**body, name: True})
        assert (caught.value.status, caught.value.param) == (400, name)
        assert translate({**body, name: None}) == translate(body)
    elif fate != "operator":
        value = VALUES.get(name, 1)
        if endpoint == "responses" and name == "tools":
            value = [{"type": "function", "name": "f", "parameters": {"type": "object"}}]
        if endpoint == "responses" and name == "tool_choice":
            value = "auto"
        if name == "previous_response_id":
            return
        plain, changed = (read_fields(translate(one), ChatFields) for one in (body, {**body, name: value}))
        if fate == "engine":
            assert changed == (plain[0], {name: value})
        elif fate == "ignored" or (endpoint == "responses" and name in ANSWERED):
            assert changed == plain
        else:
            assert changed != plain


@pytest.mark.parametrize("endpoint", TRANSLATED)
@pytest.mark.parametrize("name", ["n", "logprobs", "top_logprobs", "return_token_ids"])
def test_what_their_answers_cannot_tell_is_refused(endpoint: str, name: str) -> None:
    """Fields of chats whose effect would not show are a 400, unless they ask for nothing."""
    translate, body, _ = TRANSLATED[endpoint]
    with pytest.raises(GatewayError) as caught:
        translate({**body, name: 2})
    assert caught.value.param == name
    translate({**body, "n": 1, "logprobs": False, "top_logprobs": None})


def test_log_probabilities_cannot_be_included() -> None:
    """What vLLM would tell on demand is refused, and not left out."""
    translate, body, _ = TRANSLATED["responses"]
    with pytest.raises(GatewayError) as caught:
        translate({**body, "include": ["message.output_text.logprobs"]})
    assert caught.value.param == "include"
