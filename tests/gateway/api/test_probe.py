"""canitoolcall's probe of a live server, over a model that writes what each scenario wants."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("canitoolcall")

from canitoolcall import probe

from gateway.api.app import ApiState, build_app
from gateway.relay.types import GenerationRequest
from gateway.text.model import ServedModel
from gateway.text.parsers.registry import find_parsers
from tests.fakes.answers import ScriptedGenerator, Step, say
from tests.fakes.server import AppServer

ARGUMENTS: dict[str, dict[str, Any]] = {
    "get_weather": {"city": "Paris"},
    "get_server_time": {},
    "save_note": {"title": "Grüße aus Zürich", "body": "Café ☕ in 東京 — naïve résumé 🚀"},
    "create_event": {
        "title": "Design review",
        "attendees": [{"name": "Ana", "email": "ana@example.com"}],
        "location": {"city": "Berlin"},
    },
    "record_answer": {"answer": "9.9"},
}
HERMES = '<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'
HARMONY = "<|start|>assistant<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{arguments}<|call|>"
FAMILIES: dict[str, tuple[str, str, str, str, str]] = {
    "qwen3": ("hermes", "qwen3", "<think>\nHmm.\n</think>\n\n", "{text}", HERMES),
    "gpt-oss": (
        "openai",
        "openai_gptoss",
        "<|channel|>analysis<|message|>Hmm.<|end|>",
        "<|start|>assistant<|channel|>final<|message|>{text}",
        HARMONY,
    ),
}


@pytest.mark.parametrize("family", sorted(FAMILIES))
async def test_probe(state: ApiState, generator: ScriptedGenerator, model: ServedModel, family: str) -> None:
    """Every scenario passes, streamed and whole, without a warning but that a named tool ends with "stop"."""
    tools, reasoning, thought, said, called = FAMILIES[family]

    def write(scenario: probe.Scenario, forced: bool) -> str:
        calls = [(name, json.dumps(ARGUMENTS[name], ensure_ascii=False)) for name in scenario.expect.tool_names]
        if forced:
            return thought + said.format(text=calls[0][1])
        spelled = [called.format(name=name, arguments=arguments) for name, arguments in calls]
        return thought + ("\n".join(spelled) or said.format(text="42 degrees"))

    def answer(request: GenerationRequest) -> Sequence[Step]:
        prompt = model.tokenizer.decode(list(request.prompt))
        asked = next(
            one for one in probe.BUILTIN_SCENARIOS if one.messages[0]["content"] in prompt and fits(one, prompt)
        )
        return say(model.encoder.encode_now(write(asked, bool(request.sampling.extra))))

    generator.script = answer
    models = {"tiny": replace(model, parsers=find_parsers(tools, reasoning, ()))}
    async with AppServer(build_app(replace(state, models=models))) as server:
        report = await asyncio.to_thread(probe.probe, f"{server.url}/v1", "tiny")
    assert [one for one in report.outcomes if one.status != "pass"] == []
    warned = {one.scenario_id for one in report.outcomes if one.warnings}
    assert warned <= {"forced-tool-choice"}


def fits(scenario: probe.Scenario, prompt: str) -> bool:
    """Say whether all that the scenario says is in the prompt."""
    return all(str(message.get("content") or "") in prompt for message in scenario.messages)
