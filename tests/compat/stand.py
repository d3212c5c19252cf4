"""Gateways for clients: each over a relay of scripted engines that write as one family of models does.

What is written depends on the conversation: a call where the user says "Call", the end of the work once a tool has
answered, JSON where the request has a grammar.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from backends.types import TransferProgress, TransferRequest
from gateway.api.admin import Pages
from gateway.api.app import ApiState, build_app
from gateway.text.model import ServedModel, load_model
from gateway.text.parsers.registry import find_parsers
from policies.rules import parse_rules
from tests.fakes.engine import Call
from tests.fakes.script import EOS, NextId, Script
from tests.fakes.server import AppServer
from tests.gateway.api.access import make_access
from tests.gateway.api.test_families import FAMILIES, SPELLED, TOKENS
from tests.gateway.model_dir import make_model_dir
from tests.gateway.relay.stage import CHUNK_TOKENS, MODEL, QUICK, Arrival, LinkedPath, Stage, open_stage

RULES: dict[str, Any] = {
    "direct_wan_bound_s": 0,
    "relay": QUICK,
    "handoff": {"threshold_tokens": 1},
}
TEMPLATE = (
    "{%- if tools %}{{ '<|im_start|>system\\nTools: ' + (tools | tojson) + '<|im_end|>\\n' }}{% endif -%}"
    "{%- for message in messages -%}"
    "{{ '<|im_start|>' + message.role + '\\n' + (message.content or '') }}"
    "{%- for call in message.tool_calls or [] %}{{ '[' + (call.function | tojson) + ']' }}{% endfor -%}"
    "{{ '<|im_end|>\\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif -%}"
)
RLD_TOKENS = 4
"""What RLD writes before the KV is there; every answer is longer."""
HEAD = "<|im_start|>assistant\n"


@dataclass(frozen=True, slots=True)
class Stand:
    """One family's gateway."""

    family: str
    url: str
    stage: Stage

    @property
    def legs(self) -> dict[str, int]:
        """Calls that each engine had."""
        return {name: len(engine.calls) for name, engine in self.stage.engines.items()}


class Writer:
    """What a family's model says."""

    def __init__(self, model: ServedModel, with_call: str) -> None:
        self._model = model
        self._head = model.encoder.encode_now(HEAD)
        self._with_call = with_call
        self._without = with_call[: with_call.index("Sure.") + len("Sure.")]

    def model_of(self, call: Call) -> NextId:
        """Return the model that goes on with a call's prompt, at whatever place of the answer it ends."""
        prompt, head = call.prompt, self._head
        start = max(at for at in range(len(prompt)) if prompt[at : at + len(head)] == head) + len(head)
        text = self._text(self._model.tokenizer.decode(prompt[:start], skip_special_tokens=False), call.body)
        ids = [*self._model.encoder.encode_now(text), EOS]

        def say(context: Sequence[int]) -> int:
            at = len(context) - start
            return ids[at] if at < len(ids) else EOS

        return say

    def _text(self, conversation: str, body: dict[str, Any]) -> str:
        schema = find_schema(body)
        if schema is not None:
            return self._without.removesuffix("Sure.") + spell(schema)
        *_, last, _ = conversation.split("<|im_start|>")
        return self._with_call if last.startswith("user") and "Call" in last else self._without


def find_schema(body: dict[str, Any]) -> dict[str, Any] | None:
    """Return the grammar of a request, {} for any JSON object."""
    grammar = body.get("structured_outputs") or {}
    if "json" in grammar:
        schema: dict[str, Any] = grammar["json"]
        return schema
    form = body.get("response_format") or {}
    return (form.get("json_schema") or {}).get("schema", {}) if form.get("type", "text") != "text" else None


def spell(schema: dict[str, Any]) -> str:
    """Return the place that clients ask for, alone, or as the arguments of the first tool of a forced call."""
    if schema.get("type") != "array":
        return SPELLED
    name = schema["items"]["anyOf"][0]["properties"]["name"]["enum"][0]
    return f'[{{"name": "{name}", "parameters": {SPELLED}}}]'


class PromptPath(LinkedPath):
    """Brings KV at once where the client waits for it, and when RLD has written a little where there is a relay."""

    async def transfer(self, request: TransferRequest) -> AsyncGenerator[TransferProgress, None]:
        """Open a transfer."""
        self.is_instant = request.priority == "waiting"
        async for step in super().transfer(request):
            yield step


def take_kv(prompt: Sequence[int]) -> Script:
    """Answer as an engine that finds all KV that has crossed in its store."""
    return Script(chunks=(2, 3), cached_tokens=len(prompt) // CHUNK_TOKENS * CHUNK_TOKENS)


@asynccontextmanager
async def open_stand(
    family: str, directory: Path, write: Callable[[ServedModel, str], Writer] = Writer, context_tokens: int = 4096
) -> AsyncIterator[Stand]:
    """Run the engines of a family and a gateway before them. ``write``: what the model says."""
    make_model_dir(directory, context_tokens=context_tokens)
    (directory / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.add_special_tokens(TOKENS)
    tokenizer.save(str(directory / "tokenizer.json"))
    tools, reasoning, text = FAMILIES[family]
    model = replace(load_model(MODEL, directory), parsers=find_parsers(tools, reasoning, TOKENS))
    writer = write(model, text)
    rules = parse_rules(RULES)
    access = replace(make_access(), rules_of=lambda tenant, key: rules)
    pages = Pages(lambda: [], lambda request_id: None, lambda: (b"", "text/plain"))
    try:
        path = PromptPath()
        engines = ("p1", "rld1", "md1")
        async with open_stage(RULES, ids=engines, path=path, max_model_len=max(8192, context_tokens)) as stage:
            for engine in stage.engines.values():
                engine.model_of = writer.model_of
            stage.engines["rld1"].judge = lambda prompt: Script(holds={RLD_TOKENS: Arrival(path)})
            stage.engines["md1"].judge = take_kv
            async with AppServer(build_app(ApiState({MODEL: model}, stage.service, 0, access, pages))) as server:
                yield Stand(family, server.url, stage)
    finally:
        model.close()
