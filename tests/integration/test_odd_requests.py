"""Odd but legal requests over a reference engine that is P and MD at once: split or not, the answer is the same."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import pytest_asyncio

from backends.engines.reference.demo_model import MODEL_DIR
from backends.engines.reference.demo_model.prompts import long_prompt
from gateway.app import Gateway
from gateway.config.settings import parse_settings
from gateway.demo.cluster import MODEL
from policies.rules import parse_rules
from tests.fakes.index import KnownIndex
from tests.fakes.server import AppServer
from tests.integration.forks import Fork, Forker
from tests.valkey import open_empty

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="session")]

COMMAND = ["engine", "--role", "main", "--model", str(MODEL_DIR), "--served-model-name", MODEL]
COMMAND += ["--listen", "127.0.0.1:0", "--die-with-parent"]
UNSPLIT: dict[str, Any] = {"splitting": {"enabled": False}}
GREEDY: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_tokens": 40}

CHATS: list[dict[str, Any]] = [
    {"n": 2, "seed": 5},
    {"stop": ["the", "\u0301"]},
    {"stop": " " * 3 + "x", "include_stop_str_in_output": True},
    {"logprobs": True, "top_logprobs": 2},
    {"max_tokens": 1},
    {"max_tokens": 2, "min_tokens": 2},
    {"max_tokens": 60, "min_tokens": 50},
    {"ignore_eos": True, "skip_special_tokens": False},
    {"logit_bias": {"300": 5, "301": "-100"}},
    {"repetition_penalty": 1.3},
    {"presence_penalty": 1.5},
    {"seed": 3, "temperature": 0.8},
    {"bad_words": ["the", "and so on"]},
    {"max_tokens": None, "max_completion_tokens": 30.0},
    {"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "none"},
]


@dataclass(slots=True)
class Rig:
    """A gateway in one region, on a socket."""

    gateway: Gateway
    url: str
    client: httpx.AsyncClient

    async def post(self, path: str, body: dict[str, Any], rules: dict[str, Any]) -> httpx.Response:
        """Ask under these rules."""
        self.gateway.rulebook.replace(parse_rules(rules))
        return await self.client.post(f"{self.url}/v1/{path}", json={**GREEDY, **body})


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def rig(forker: Forker, valkey_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    """One engine process behind a gateway."""
    child = Fork("engine", tmp_path_factory.mktemp("engine"), forker, COMMAND)
    await child.start()
    engine = {"model": MODEL, "region": "a", "url": child.url, "kv_events": None}
    settings = parse_settings(
        {
            "models": [{"name": MODEL, "path": str(MODEL_DIR), "kv_bytes_per_token": 1000}],
            "engines": [{"id": "p", "role": "P", **engine}, {"id": "md", "role": "MD", **engine}],
            "canary_interval_s": 0,
        }
    )
    try:
        async with open_empty(valkey_url) as redis:
            gateway = Gateway(settings, KnownIndex({"p": 0, "md": 0}), redis, True)
            async with gateway, AppServer(gateway.app) as server, httpx.AsyncClient(timeout=120) as client:
                yield Rig(gateway, server.url, client)
    finally:
        await child.stop()


def essence(answer: httpx.Response) -> dict[str, Any]:
    """What an answer says, without its names and times."""
    assert answer.status_code == 200, answer.text
    said = answer.json()
    for choice in said["choices"]:
        for entry in (choice.get("logprobs") or {}).get("content", ()):
            entry["logprob"] = round(entry["logprob"], 2)
            entry["top_logprobs"] = [top["token"] for top in entry["top_logprobs"]]
    return {"choices": said["choices"], "completion_tokens": said["usage"]["completion_tokens"]}


@pytest.mark.parametrize("change", CHATS, ids=lambda change: next(iter(change)))
async def test_split_or_not_is_the_same(rig: Rig, change: dict[str, Any]) -> None:
    """API-08: text, ids, finish reasons and counts of a split answer are those of an answer by one leg."""
    body = {"messages": [{"role": "user", "content": long_prompt(7, 60)}], "return_token_ids": True, **change}
    split = essence(await rig.post("chat/completions", body, {}))
    assert split == essence(await rig.post("chat/completions", body, UNSPLIT))


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"logit_bias": {"99999999": 1}}, {400}),
        ({"stop_token_ids": [99_999_999]}, {200, 400}),
        ({"response_format": {"type": "no_such"}}, {200, 400}),
        ({"prompt": [[5, 6], [7]], "n": 2, "echo": True, "seed": 1}, {200}),
        ({"prompt": [0, 1, 2, 3]}, {200}),
        ({"prompt": "\U0010ffff\u0000\ufeff\u202e e\u0301"}, {200}),
        ({"prompt": [5] * 7000, "truncate_prompt_tokens": 50}, {200}),
        ({"max_tokens": 2_000_000}, {400}),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
async def test_engines_verdict(rig: Rig, change: dict[str, Any], status: set[int]) -> None:
    """What only engines judge is an answer or a 400 in OpenAI's shape, never a failure."""
    answer = await rig.post("completions", {"prompt": long_prompt(8, 20), **change}, {})
    assert answer.status_code in status, answer.text
    assert answer.status_code == 200 or set(answer.json()["error"]) == {"message", "type", "param", "code"}
