"""Every field of vLLM's requests has the fate that the table says; none that vLLM acts on is ignored in silence."""

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.api.fates import FATES
from gateway.api.fields import is_internal, read_fields
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
