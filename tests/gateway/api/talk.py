"""A long conversation of an agent over a relay: what it costs to send the history anew, turn after turn.

The engines are scripted: one model that thinks, calls a tool and is told. Some of its answers are not in the tokens or
the spelling that a tokeniser and a template would make of them. MD and its region's store remember what they have seen,
in chunks, as real ones do.
"""

import hashlib
from array import array
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx

from backends.types import TransferProgress, TransferRequest
from gateway.api.admin import Pages
from gateway.api.app import ApiState, build_app
from gateway.text.model import ServedModel, load_model
from policies.rules import parse_rules
from tests.fakes.engine import Call
from tests.fakes.script import EOS, NextId, Script
from tests.fakes.server import AppServer
from tests.gateway.api.access import make_access
from tests.gateway.model_dir import CORPUS, make_model_dir
from tests.gateway.relay.stage import CHUNK_TOKENS, MODEL, QUICK, Arrival, LinkedPath, Stage, open_stage

TEMPLATE = (
    "{%- set ns = namespace(asked=0) -%}"
    "{%- for message in messages -%}"
    "{%- if message.role == 'user' %}{% set ns.asked = loop.index0 %}{% endif -%}"
    "{%- endfor -%}"
    "{%- for message in messages -%}"
    "{{ '<|im_start|>' + message.role + '\\n' }}"
    "{%- if message.reasoning and loop.index0 > ns.asked %}{{ '<think>\\n' + message.reasoning + '\\n</think>\\n\\n' }}"
    "{%- endif -%}"
    "{{ message.content or '' }}"
    "{%- for call in message.tool_calls or [] -%}"
    '{{ \'<tool_call>\\n{"name": "\' + call.function.name + \'", "arguments": \' }}'
    "{{ (call.function.arguments | tojson) + '}\\n</tool_call>' }}"
    "{%- endfor -%}"
    "{{ '<|im_end|>\\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif -%}"
)
"""Thoughts of before the last question are left out, as by many families' templates."""
TOOLS = [{"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}]
HEAD = "<|im_start|>assistant\n"
RLD_TOKENS = 8
KV_BYTES_PER_TOKEN = 4096
RULES: dict[str, Any] = {"direct_wan_bound_s": 0, "relay": QUICK, "handoff": {"threshold_tokens": 1}}


@dataclass
class Seen:
    """What an engine or a store has of prompts, by chunks."""

    chunks: set[bytes] = field(default_factory=set)

    def count(self, ids: Sequence[int]) -> int:
        """How many of a prompt's chunks are there, from its beginning on."""
        names = self._names(ids)
        return next((at for at, name in enumerate(names) if name not in self.chunks), len(names))

    def add(self, ids: Sequence[int]) -> None:
        self.chunks.update(self._names(ids))

    @staticmethod
    def _names(ids: Sequence[int]) -> list[bytes]:
        chain = hashlib.blake2b(digest_size=16)
        names = []
        for at in range(0, len(ids) - CHUNK_TOKENS + 1, CHUNK_TOKENS):
            chain.update(array("I", ids[at : at + CHUNK_TOKENS]).tobytes())
            names.append(chain.digest())
        return names


class Crossing(LinkedPath):
    """Brings only what MD's side has not yet."""

    def __init__(self, seen: Seen) -> None:
        super().__init__(chunk_bytes=CHUNK_TOKENS * KV_BYTES_PER_TOKEN)
        self._seen = seen

    async def transfer(self, request: TransferRequest) -> AsyncGenerator[TransferProgress, None]:
        """Open a transfer."""
        self.chunks_present = self._seen.count(request.token_ids)
        self.is_instant = request.priority == "waiting"
        async for step in super().transfer(request):
            yield step
        self._seen.add(request.token_ids)


class Writer:
    """The model. ``odd``: of so many answers one is in other tokens and another spelling; 0: none is."""

    def __init__(self, model: ServedModel, odd: int) -> None:
        self._model = model
        self._head = model.encoder.encode_now(HEAD)
        self._odd = odd

    def model_of(self, call: Call) -> NextId:
        """Return the model that goes on with a call's prompt, at whatever place of the answer it ends."""
        prompt, head = call.prompt, self._head
        start = max(at for at in range(len(prompt)) if prompt[at : at + len(head)] == head) + len(head)
        turns = self._model.tokenizer.decode(prompt[:start], skip_special_tokens=False).count(HEAD)
        ids = [*self.write(turns), EOS]
        return lambda context: ids[len(context) - start] if len(context) - start < len(ids) else EOS

    def write(self, turn: int) -> list[int]:
        """Return the ids of an answer."""
        encode = self._model.encoder.encode_now
        is_odd = self._odd and turn % self._odd == 0
        thought = f"Hello there. {CORPUS[turn % 2]} {turn}"
        called = f'{{"name":"find","arguments":{{"key":{turn}}}}}' if is_odd else spell_call(turn)
        text = f"<think>\n{thought}\n</think>\n\n<tool_call>\n{called}\n</tool_call>"
        middle = text.index("ello") + 2 if is_odd else 0
        return [*encode(text[:middle]), *encode(text[middle:])] if middle else encode(text)


def spell_call(turn: int) -> str:
    """A call as the template shows it."""
    return f'{{"name": "find", "arguments": {{"key": {turn}}}}}'


@dataclass
class Talked:
    """What a conversation came to, in ids of each turn. ``rendered``: the prompts as an engine makes them."""

    prompts: list[list[int]] = field(default_factory=list)
    written: list[list[int]] = field(default_factory=list)
    """Each prompt and its answer, without the token that ended it."""
    rendered: list[list[int]] = field(default_factory=list)
    md_hit_tokens: int = 0
    wan_bytes: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def prompt_tokens(self) -> int:
        return sum(map(len, self.prompts))


def make_model(directory: Path) -> ServedModel:
    """A model whose template shows thoughts and calls."""
    make_model_dir(directory, context_tokens=8192)
    (directory / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return load_model(MODEL, directory)


async def talk(model: ServedModel, turns: int, *, reuse: bool, odd: int) -> Talked:
    """Hold a conversation of so many turns through a gateway's relay."""
    model = replace(model, reuses_turns=reuse)
    rules = parse_rules(RULES)
    access = replace(make_access(), rules_of=lambda tenant, key: rules)
    pages = Pages(lambda: [], lambda request_id: None, lambda: (b"", "text/plain"))
    talked, seen = Talked(), Seen()
    path = Crossing(seen)
    writer = Writer(model, odd)
    async with open_stage(RULES, ids=("p1", "rld1", "md1"), path=path) as stage:
        for engine in stage.engines.values():
            engine.model_of = writer.model_of
        stage.engines["rld1"].judge = lambda prompt: Script(holds={RLD_TOKENS: Arrival(path)})
        stage.engines["md1"].judge = lambda prompt: Script(
            chunks=(4,), cached_tokens=len(prompt) // CHUNK_TOKENS * CHUNK_TOKENS
        )
        state = ApiState(
            {MODEL: model}, stage.service, 0, access, pages, note_turn=lambda name, note: talked.notes.append(note)
        )
        async with AppServer(build_app(state)) as server, httpx.AsyncClient(base_url=server.url) as client:
            await _hold(client, stage, model, seen, talked, turns)
    talked.wan_bytes = sum(transfer.wan_bytes for transfer in path.transfers)
    return talked


async def _hold(
    client: httpx.AsyncClient, stage: Stage, model: ServedModel, seen: Seen, talked: Talked, turns: int
) -> None:
    assert model.template is not None
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"Where is the dog? {CORPUS[0]}"}]
    path = stage.path
    for turn in range(1, turns + 1):
        opened = len(path.transfers)
        body = {"model": MODEL, "messages": messages, "tools": TOOLS, "temperature": 0, "return_token_ids": True}
        answer = (await client.post("/v1/chat/completions", json=body)).raise_for_status().json()
        await stage.quiet()
        prompt, choice = answer["prompt_token_ids"], answer["choices"][0]
        assert choice["finish_reason"] == "tool_calls" and choice["message"]["reasoning"].endswith(f" {turn}")
        roles = [
            name for name, engine in stage.engines.items() if engine.calls and engine.calls[-1].prompt[:9] == prompt[:9]
        ]
        assert roles == ["p1", "rld1", "md1"]
        talked.prompts.append(prompt)
        talked.rendered.append(model.encoder.encode_now(model.template.render(messages, tools=TOOLS)))
        messages = [
            *messages,
            {key: choice["message"][key] for key in ("role", "content", "reasoning", "tool_calls")},
            {"role": "tool", "content": f"{turn}: {CORPUS[0]} {CORPUS[1]}"},
        ]
        talked.md_hit_tokens += path.transfers[opened].chunks_present * CHUNK_TOKENS
        talked.written.append([*prompt, *choice["token_ids"][:-1]])
        seen.add(talked.written[-1])
