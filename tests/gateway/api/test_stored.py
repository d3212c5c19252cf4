"""Responses that are kept: gone on from, shown, deleted, each by its own tenant alone, sealed in a real Valkey."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import openai
import pytest

from gateway.api.app import ApiState, build_app
from gateway.api.stored import ResponseMemory
from gateway.auth.sealed import SealedStore
from gateway.redis.client import RedisClient
from gateway.text.model import ServedModel
from tests.fakes.answers import ScriptedGenerator
from tests.fakes.server import AppServer
from tests.gateway.api.access import make_access
from tests.gateway.api.test_messages_client import WRITTEN, qwen, script
from tests.gateway.api.test_responses_client import TOOL
from tests.valkey import make_away, open_client, run_valkey

__all__ = ["qwen"]

pytestmark = pytest.mark.slow

SAID = "Hm.</think>\n\nHello there."
SECRET = b"0123456789abcdef0123"


def make_store(client: RedisClient, secret: bytes = SECRET) -> SealedStore:
    """Where responses stand for a minute."""
    return SealedStore(client, secret, "response", 60)


@pytest.fixture
async def redis() -> AsyncIterator[RedisClient]:
    async with run_valkey() as url, open_client(url) as client:
        yield client


async def serve(state: ApiState, qwen: ServedModel, memory: ResponseMemory) -> AsyncIterator[AppServer]:
    """The API for two tenants, named by their keys."""
    access = make_access(identify=lambda connection: connection.headers["authorization"])
    async with AppServer(build_app(replace(state, models={"qwen": qwen}, access=access, responses=memory))) as server:
        yield server


@pytest.fixture
async def server(state: ApiState, qwen: ServedModel, redis: RedisClient) -> AsyncIterator[AppServer]:
    async for served in serve(state, qwen, ResponseMemory(make_store(redis))):
        yield served


@pytest.fixture
async def client(server: AppServer) -> AsyncIterator[openai.AsyncOpenAI]:
    """One tenant's SDK without retries."""
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="one", max_retries=0) as opened:
        yield opened


def prompt_of(generator: ScriptedGenerator, qwen: ServedModel) -> str:
    """The text of the newest prompt."""
    return qwen.tokenizer.decode(list(generator.requests[-1].prompt), skip_special_tokens=False)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_conversation_goes_on_by_id(
    client: openai.AsyncOpenAI, generator: ScriptedGenerator, qwen: ServedModel, stream: bool
) -> None:
    """The next request has but its own input, and the prompt all that was said, with the call and its result."""
    script(generator, qwen, WRITTEN)
    asked: dict[str, Any] = {"model": "qwen", "input": "Weather in 世界?", "tools": [TOOL]}
    if stream:
        events = [event async for event in await client.responses.create(**asked, stream=True)]
        first = events[-1].response
    else:
        first = await client.responses.create(**asked)
    result: Any = {"type": "function_call_output", "call_id": first.output[-1].call_id, "output": "Sunny."}
    second = await client.responses.create(
        model="qwen", previous_response_id=first.id, input=[result], instructions="Be brief.", tools=[TOOL]
    )
    third = await client.responses.create(model="qwen", previous_response_id=second.id, input="And now?")

    assert (await client.responses.retrieve(first.id)).to_dict() == first.to_dict()
    assert second.previous_response_id == first.id and third.store is True  # type: ignore[attr-defined]
    prompt = prompt_of(generator, qwen)
    assert [prompt.index(text) for text in ("世界", "Sunny.", "And now?")] == sorted(
        prompt.index(text) for text in ("世界", "Sunny.", "And now?")
    )
    assert "Be brief." not in prompt


async def test_items_are_named_by_their_ids(
    client: openai.AsyncOpenAI, generator: ScriptedGenerator, qwen: ServedModel
) -> None:
    """A client may send references in place of the items of earlier answers."""
    script(generator, qwen, SAID)
    first = await client.responses.create(model="qwen", input="Hi")
    reference: Any = {"type": "item_reference", "id": first.output[-1].id}
    await client.responses.create(
        model="qwen", input=[{"role": "user", "content": "Hi"}, reference, {"role": "user", "content": "So?"}]
    )
    assert "Hello there." in prompt_of(generator, qwen)
    reference["id"] = reference["id"][:-2] + "77"
    with pytest.raises(openai.NotFoundError):
        await client.responses.create(model="qwen", input=[reference])


async def test_what_is_deleted_or_not_to_be_stored_is_not_there(
    client: openai.AsyncOpenAI, generator: ScriptedGenerator, qwen: ServedModel, redis: RedisClient
) -> None:
    """A deleted response is a 404 from then on, and ``store: false`` leaves nothing behind."""
    script(generator, qwen, SAID)
    answer = await client.responses.create(model="qwen", input="Hi")
    await client.responses.delete(answer.id)
    with pytest.raises(openai.NotFoundError) as caught:
        await client.responses.retrieve(answer.id)
    assert caught.value.code == "response_not_found"
    with pytest.raises(openai.NotFoundError):
        await client.responses.delete(answer.id)
    with pytest.raises(openai.NotFoundError) as caught:
        await client.responses.create(model="qwen", input="Hi", previous_response_id=answer.id)
    assert caught.value.param == "previous_response_id"
    await client.responses.create(model="qwen", input="Hi", store=False)
    assert await redis.commands.dbsize() == 0


async def test_others_get_nothing(
    client: openai.AsyncOpenAI, server: AppServer, generator: ScriptedGenerator, qwen: ServedModel
) -> None:
    """Another tenant's id is one that does not exist."""
    script(generator, qwen, SAID)
    answer = await client.responses.create(model="qwen", input="Hi")
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="two", max_retries=0) as other:
        reference: Any = {"type": "item_reference", "id": answer.output[0].id}
        for asked in (
            other.responses.retrieve(answer.id),
            other.responses.delete(answer.id),
            other.responses.create(model="qwen", input="Hi", previous_response_id=answer.id),
            other.responses.create(model="qwen", input=[reference]),
        ):
            with pytest.raises(openai.NotFoundError):
                await asked
    assert (await client.responses.retrieve(answer.id)).id == answer.id


async def test_redis_holds_nothing_that_can_be_read(
    client: openai.AsyncOpenAI, generator: ScriptedGenerator, qwen: ServedModel, redis: RedisClient
) -> None:
    """Neither ids, nor tenants, nor texts stand there, each entry ends by itself, and another secret opens none."""
    script(generator, qwen, SAID)
    answer = await client.responses.create(model="qwen", input="Hello world!")
    (key,) = [key async for key in redis.commands.scan_iter()]
    data = await redis.commands.get(key)
    assert isinstance(data, bytes)
    for text in (b"Hello", b"Bearer", b"one", answer.id.encode()):
        assert text not in key and text not in data
    assert 0 < await redis.commands.ttl(key) <= 60
    assert await make_store(redis, SECRET + b"x").get("Bearer one", answer.id) is None
    await redis.commands.set(key, data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(answer.id)


async def test_an_answer_that_cannot_be_kept_says_so(
    state: ApiState, generator: ScriptedGenerator, qwen: ServedModel
) -> None:
    """Without Redis answers come and say that they are not stored; what was stored is a 503."""
    script(generator, qwen, SAID)
    async with make_away() as away:
        async for server in serve(state, qwen, ResponseMemory(make_store(away.client("responses", 2.0)))):
            async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="one", max_retries=0) as client:
                answer = await client.responses.create(model="qwen", input="Hi")
                assert answer.store is False and answer.output_text == "Hello there."  # type: ignore[attr-defined]
                with pytest.raises(openai.InternalServerError) as caught:
                    await client.responses.retrieve("resp_1")
                assert caught.value.status_code == 503


async def test_without_a_store_ids_are_refused(
    state: ApiState, generator: ScriptedGenerator, qwen: ServedModel
) -> None:
    """Where none is set up, going on by id is a 400 that says what to do, and nothing is there."""
    script(generator, qwen, SAID)
    async for server in serve(state, qwen, ResponseMemory()):
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="one", max_retries=0) as client:
            with pytest.raises(openai.BadRequestError) as caught:
                await client.responses.create(model="qwen", input="Hi", previous_response_id="resp_1")
            assert caught.value.param == "previous_response_id" and "responses.keep_s" in caught.value.message
            with pytest.raises(openai.NotFoundError):
                await client.responses.retrieve("resp_1")
            with pytest.raises(openai.NotFoundError):
                await client.responses.delete("resp_1")
