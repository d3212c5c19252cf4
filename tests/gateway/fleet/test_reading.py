"""Engines are asked how they read chats, and read those that the gateway reads in another way."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.redis.client import SharedRedis
from gateway.text.model import ServedModel, load_model
from gateway.text.shapes import ASK, CHECKED, SHAPES, WEATHER, features_of, role, says, user
from gateway.text.template import TemplateRejected
from tests.fakes.engine import FakeEngine
from tests.fakes.script import Refuse
from tests.gateway.model_dir import model_dir
from tests.gateway.text.test_token_files import write_ranks
from tests.gateway.whole import MODEL, Whole, open_whole

__all__ = ["model_dir"]

Reading = Callable[[dict[str, Any]], list[int] | Refuse]
OTHER = 7


@pytest.fixture(scope="module")
def twin(model_dir: Path) -> ServedModel:
    """The same model, as a fake engine has it."""
    return load_model("twin", model_dir)


@pytest.fixture
def bare_dir(model_dir: Path, tmp_path: Path) -> Path:
    """The directory without a template."""
    for file in ("tokenizer.json", "config.json", "generation_config.json"):
        (tmp_path / file).write_bytes((model_dir / file).read_bytes())
    return tmp_path


@pytest.fixture
def ranks_dir(model_dir: Path, tmp_path: Path) -> Path:
    """The model as Kimi's directories are: ranks of tokens, control tokens in another file, no template."""
    for file in ("config.json", "generation_config.json"):
        (tmp_path / file).write_bytes((model_dir / file).read_bytes())
    write_ranks(tmp_path, model_dir)
    return tmp_path


def reads_like(model: ServedModel, differs: Callable[[dict[str, Any]], bool] = lambda chat: False) -> Reading:
    """Return how an engine reads chats: as the gateway does, but with another first token for some."""

    def read(chat: dict[str, Any]) -> list[int] | Refuse:
        assert model.template is not None
        if "prompt" in chat:
            return model.encoder.encode_now(chat["prompt"], special=chat["add_special_tokens"])
        try:
            ids = model.encoder.encode_now(model.template.render_chat(chat))
        except TemplateRejected as error:
            return Refuse(400, {"error": {"message": str(error)}})
        return [OTHER, *ids] if differs(chat) else ids

    return read


@asynccontextmanager
async def open_with(
    model_dir: Path, redis: SharedRedis, reading: Reading | None, **model: Any
) -> AsyncIterator[tuple[Whole, FakeEngine]]:
    """Run a gateway whose engines read chats in a way, and wait until they were asked."""
    engines = {role: FakeEngine(role, served_model=MODEL) for role in ("P", "MD")}
    for engine in engines.values():
        engine.reads_chat = reading
    async with open_whole(model_dir, redis, engines, model) as whole:
        await whole.gateway.readings.settled()
        yield whole, engines["P"]


async def chat(whole: Whole, **fields: Any) -> tuple[int, Any]:
    """Ask for an answer of a few tokens."""
    body = {"model": MODEL, "messages": [ASK], "max_tokens": 3, "ignore_eos": True, **fields}
    answer = await whole.client.post("/v1/chat/completions", json=body)
    return answer.status_code, answer.json()


def first_ids(engine: FakeEngine) -> list[int]:
    """The first token of each prompt."""
    return [call.prompt[0] for call in engine.calls]


async def test_engines_that_agree_are_not_named(model_dir: Path, shared_redis: SharedRedis, twin: ServedModel) -> None:
    """An engine is asked for every shape; where all agree nothing is said, and chats are read here."""
    async with open_with(model_dir, shared_redis, reads_like(twin)) as (whole, engine):
        assert len(engine.chats) == len(CHECKED)
        assert whole.gateway.status.find_degraded() == []
        assert (await chat(whole))[0] == 200
        assert len(engine.chats) == len(CHECKED)


async def test_a_shape_that_differs_is_named_and_asked_for(
    model_dir: Path, shared_redis: SharedRedis, twin: ServedModel
) -> None:
    """Each shape that differs stands at /ready and in a metric; such chats are read by an engine, others are not."""
    async with open_with(model_dir, shared_redis, reads_like(twin, lambda c: bool(c.get("tools")))) as (whole, engine):
        ready = (await whole.client.get("/ready")).json()
        metrics = (await whole.client.get("/metrics")).text
        with_tools = {shape for shape, body in CHECKED.items() if body.get("tools")}
        for shape in with_tools:
            assert any(f"{shape}" in line for line in ready["degraded"])
            assert f'pdd_reads_otherwise{{instance="P",model="{MODEL}",shape="{shape}"}} 1.0' in metrics
        assert 'shape="user"' not in metrics
        for fields in ({}, {"tools": [WEATHER]}, {"messages": [user("a"), says("b"), user("c")]}):
            assert (await chat(whole, **fields))[0] == 200
        assert [id_ == OTHER for id_ in first_ids(engine)] == [False, True, False]


@pytest.mark.parametrize(("reader", "asked"), [("local", [False, False]), ("engine", [True, True])])
async def test_the_setting_says_who_reads(
    model_dir: Path, shared_redis: SharedRedis, twin: ServedModel, reader: str, asked: list[bool]
) -> None:
    """``reader`` local and engine hold for every chat."""
    reading = reads_like(twin, lambda chat: True)
    async with open_with(model_dir, shared_redis, reading, reader=reader) as (whole, engine):
        for fields in ({}, {"tools": [WEATHER]}):
            assert (await chat(whole, **fields))[0] == 200
        assert [id_ == OTHER for id_ in first_ids(engine)] == asked


async def test_a_model_without_a_template_is_read_by_its_engine(
    bare_dir: Path, shared_redis: SharedRedis, twin: ServedModel
) -> None:
    """API-123: chats of a model that has no template here are read by its engine, refusals included."""
    async with open_with(bare_dir, shared_redis, reads_like(twin)) as (whole, engine):
        status, answer = await chat(whole)
        assert status == 200 and answer["usage"]["prompt_tokens"] == len(engine.calls[-1].prompt)
        status, answer = await chat(whole, messages=[{"role": "wizard", "content": "x"}])
        assert (status, answer["error"]["code"]) == (400, "template_error")


async def test_a_model_without_a_tokenizer_is_read_by_its_engine(
    ranks_dir: Path, shared_redis: SharedRedis, twin: ServedModel
) -> None:
    """API-123: prompts are the engine's, of chats and of texts; answers are written by what the ranks say of tokens."""
    async with open_with(ranks_dir, shared_redis, reads_like(twin), reader="engine") as (whole, engine):
        assert whole.gateway.status.find_degraded() == []
        assert (await chat(whole))[0] == 200
        assert twin.template is not None
        assert engine.calls[-1].prompt == twin.encoder.encode_now(twin.template.render([ASK]))
        body = {"model": MODEL, "prompt": "Hello world!", "max_tokens": 1, "ignore_eos": True, "bad_words": ["x"]}
        assert (await whole.client.post("/v1/completions", json=body)).status_code == 200
        assert engine.calls[-1].prompt == twin.encoder.encode_now("Hello world!", special=True)


async def test_an_engine_that_cannot_tell_changes_nothing(model_dir: Path, shared_redis: SharedRedis) -> None:
    """Without a path to ask at, nothing is named and chats are read here."""
    async with open_with(model_dir, shared_redis, None) as (whole, _):
        assert whole.gateway.status.find_degraded() == []
        assert (await chat(whole))[0] == 200


def test_a_shape_stands_for_chats_with_its_features() -> None:
    """A chat has the features of its shapes, whatever else it holds, and not those of others."""
    shape = SHAPES["result"]
    asked = features_of({**shape, "messages": [role("system", "Be brief."), *shape["messages"]]})
    covered = {shape for shape, body in CHECKED.items() if features_of(body) <= asked}
    assert {"user", "system", "tools", "result", "unicode"} <= covered
    assert not covered & {"developer", "two_calls", "parts", "result_parts", "effort_low", "reasoning", "continued"}
