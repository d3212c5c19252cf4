"""One number for the context, behind a whole gateway: where it is shown, where it refuses, where it ends answers."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway.redis.client import SharedRedis
from tests.fakes.engine import FakeEngine
from tests.gateway.model_dir import make_model_dir, model_dir
from tests.gateway.whole import MODEL, Whole, open_whole

__all__ = ["model_dir"]

PROMPT = list(range(3, 103))


def make_nameless_dir(folder: Path) -> Path:
    """Write a model directory that does not tell its length."""
    directory = make_model_dir(folder)
    (directory / "config.json").write_text('{"text_config": {"hidden_size": 8}}', encoding="utf-8")
    return directory


def make_engines(lengths: dict[str, int]) -> dict[str, FakeEngine]:
    """Return engines by role."""
    return {role: FakeEngine(role, served_model=MODEL, max_model_len=length) for role, length in lengths.items()}


async def complete(whole: Whole, **fields: Any) -> tuple[int, Any]:
    """Ask for a completion without an end of its own."""
    body = {"model": MODEL, "prompt": PROMPT, "ignore_eos": True, **fields}
    answer = await whole.client.post("/v1/completions", json=body)
    return answer.status_code, answer.json()


@pytest.mark.parametrize(
    ("configured", "lengths", "setting", "context"),
    [
        (40960, {"P": 130, "MD": 130}, None, 130),
        (64, {"P": 130, "MD": 130}, None, 130),
        (4096, {"P": 300, "RLD": 130, "MD": 200}, None, 130),
        (4096, {"P": 300, "MD": 200}, 130, 130),
    ],
)
async def test_the_engines_number_holds_everywhere(
    tmp_path: Path,
    shared_redis: SharedRedis,
    configured: int,
    lengths: dict[str, int],
    setting: int | None,
    context: int,
) -> None:
    """What engines take is shown, clamps answers, and refuses with both numbers, whatever config.json says."""
    directory = await asyncio.to_thread(make_model_dir, tmp_path / "model", context_tokens=configured)
    room = context - len(PROMPT)
    model = {} if setting is None else {"context_tokens": setting}
    async with open_whole(directory, shared_redis, make_engines(lengths), model) as whole:
        shown = (await whole.client.get("/v1/models")).json()["data"]
        assert [card["max_model_len"] for card in shown] == [context]
        for asked in (room + 1, context):
            status, answer = await complete(whole, max_tokens=asked)
            assert status == 200, answer
            assert answer["choices"][0]["finish_reason"] == "length"
            assert answer["usage"]["completion_tokens"] == room
        status, answer = await complete(whole, max_tokens=context + 1)
        assert (status, answer["error"]["param"]) == (400, "max_tokens")
        too_long = [*PROMPT, *PROMPT]
        status, answer = await complete(whole, prompt=too_long)
        error = answer["error"]
        assert (status, error["param"], error["code"]) == (400, "prompt", "context_length_exceeded")
        assert str(context) in error["message"] and str(len(too_long)) in error["message"]


async def test_both_names_of_the_limit_are_clamped(model_dir: Path, shared_redis: SharedRedis) -> None:
    """A chat's limits by either name end at the context's end; beyond the context they are refused by that name."""
    engines = make_engines({"P": 130, "MD": 130})
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "ignore_eos": True}
    async with open_whole(model_dir, shared_redis, engines) as whole:
        for name in ("max_tokens", "max_completion_tokens"):
            answer = await whole.client.post("/v1/chat/completions", json={**chat, name: 130})
            usage = answer.json()["usage"]
            assert answer.status_code == 200 and usage["total_tokens"] == 130
            answer = await whole.client.post("/v1/chat/completions", json={**chat, name: 131})
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)
        answer = await whole.client.post(
            "/v1/chat/completions", json={**chat, "messages": [{"role": "user", "content": "word " * 400}]}
        )
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "messages")


async def test_an_unknown_context_is_said(tmp_path: Path, shared_redis: SharedRedis) -> None:
    """A model whose length nobody tells starts, and is named where the operator looks."""
    directory = await asyncio.to_thread(make_nameless_dir, tmp_path / "model")
    async with open_whole(directory, shared_redis, make_engines({"P": 0, "MD": 0})) as whole:
        card = (await whole.client.get("/v1/models")).json()["data"][0]
        assert "max_model_len" not in card
        assert any("context_tokens" in line for line in whole.gateway.status.find_degraded())
