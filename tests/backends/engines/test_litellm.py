"""``LiteLlm`` with the real LiteLLM against a local provider."""

import asyncio
import logging
from collections.abc import AsyncIterator

import orjson
import pytest

from backends.engines.external import ExternalChunk, ExternalModel
from backends.engines.litellm import LiteLlm, load_litellm
from backends.errors import BackendError, EngineBroken, EngineFailed, EngineRejected, EngineTimeout, EngineUnavailable
from tests.fakes.gates import HoldGate
from tests.fakes.upstream import NOTHING, SSE, FakeUpstream, Say

# LiteLLM's own warnings are not ours to mend.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(180), pytest.mark.filterwarnings("default")]

MARK = "zanzibar"
FIELDS = {"messages": [{"role": "user", "content": f"Hi {MARK}"}], "temperature": 0.5, "max_tokens": 5}


def chunk(delta: dict[str, object], finish: str | None = None) -> bytes:
    """One event of OpenAI's stream."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return event({"choices": [choice]})


def event(fields: dict[str, object]) -> bytes:
    """An event with the fields that every chunk has."""
    head = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-4o-mini"}
    return b"data: " + orjson.dumps(head | fields) + b"\n\n"


USAGE = {"prompt_tokens": 1000, "completion_tokens": 2, "total_tokens": 1002}
STREAM = (
    chunk({"role": "assistant", "content": ""}),
    chunk({"content": "Hel"}),
    chunk({"content": "lo"}, "stop"),
    event({"choices": [], "usage": USAGE}),
    b"data: [DONE]\n\n",
)


@pytest.fixture(scope="module")
def litellm() -> LiteLlm:
    """The real thing, loaded once."""
    return load_litellm()


@pytest.fixture
async def provider() -> AsyncIterator[FakeUpstream]:
    """A provider on this machine."""
    async with FakeUpstream() as server:
        yield server


def model(provider: FakeUpstream, name: str = "openai/gpt-4o-mini", timeout_s: float = 30.0) -> ExternalModel:
    """A model that is known to be served there."""
    return ExternalModel(name, f"{provider.url}/v1", "provider-secret", timeout_s)


async def collect(litellm: LiteLlm, asked: ExternalModel, *, stream: bool = True) -> list[ExternalChunk]:
    """Ask and read to the end."""
    return [piece async for piece in litellm.chat(asked, FIELDS | {"api_base": "http://10.0.0.1"}, stream=stream)]


async def test_a_stream(litellm: LiteLlm, provider: FakeUpstream) -> None:
    """Pieces come as OpenAI's choices; tokens and their price come last; the provider gets its own key only."""
    provider.say = Say(STREAM, headers=SSE)
    got = await collect(litellm, model(provider))
    deltas = [choice["delta"] for piece in got for choice in piece.choices]
    assert "".join(delta.get("content") or "" for delta in deltas) == "Hello"
    assert [choice["finish_reason"] for piece in got for choice in piece.choices if "finish_reason" in choice] == [
        "stop"
    ]
    (usage,) = [piece.usage for piece in got if piece.usage]
    assert (usage.prompt_tokens, usage.completion_tokens) == (1000, 2)
    assert usage.cost_usd is not None and 0 < usage.cost_usd < 0.01
    (asked,) = provider.asked
    assert asked.path == "/v1/chat/completions"
    assert asked.header("authorization") == "Bearer provider-secret"
    body = orjson.loads(asked.body)
    assert (body["messages"], body["temperature"]) == (FIELDS["messages"], 0.5)
    assert "api_base" not in body


async def test_a_whole_answer(litellm: LiteLlm, provider: FakeUpstream) -> None:
    """Without a stream the answer is one piece, with its usage; nobody knows an unknown model's price."""
    message = {"role": "assistant", "content": "Hello"}
    answer = {"id": "c1", "object": "chat.completion", "created": 1, "model": "house-model", "usage": USAGE}
    answer["choices"] = [{"index": 0, "message": message, "finish_reason": "stop"}]
    provider.say = Say((orjson.dumps(answer),))
    (got,) = await collect(litellm, model(provider, "openai/house-model"), stream=False)
    assert got.choices[0]["message"]["content"] == "Hello"
    assert got.usage is not None and got.usage.cost_usd is None


def refuse(status: int, message: str = "no", **headers: str) -> Say:
    """A refusal in OpenAI's shape."""
    lines = [(b"content-type", b"application/json")]
    lines += [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Say((orjson.dumps({"error": {"message": message, "type": "x", "code": None}}),), status, tuple(lines))


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (refuse(400, f"no {MARK}"), EngineRejected),
        (refuse(401), EngineFailed),
        (refuse(429, retry_after="7"), EngineUnavailable),
        (refuse(500), EngineBroken),
        (refuse(503), EngineUnavailable),
        (NOTHING, BackendError),
    ],
)
async def test_failures(
    litellm: LiteLlm,
    provider: FakeUpstream,
    said: Say,
    error: type[Exception],
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A failure is one of the seam's errors, tried once, and no prompt gets into it, the logs or the output."""
    provider.say = said
    with caplog.at_level(logging.DEBUG), pytest.raises(error) as caught:
        await collect(litellm, model(provider))
    if said is not NOTHING:
        assert len(provider.asked) == 1
    if isinstance(caught.value, EngineUnavailable) and said.status == 429:
        assert caught.value.retry_after_s == 7
    output = capfd.readouterr()
    assert MARK not in str(caught.value) + output.out + output.err
    assert MARK not in "".join(record.getMessage() for record in caplog.records if "itellm" in record.name.lower())


async def test_silence(litellm: LiteLlm, provider: FakeUpstream) -> None:
    """A provider that says nothing is given up."""
    provider.say = Say(before=HoldGate())
    with pytest.raises(EngineTimeout):
        await collect(litellm, model(provider, timeout_s=0.2))


async def test_closing_ends_the_providers_work(litellm: LiteLlm, provider: FakeUpstream) -> None:
    """An answer that nobody reads any more is closed at the provider, too."""
    gate = HoldGate()
    provider.say = Say((*STREAM[:2], gate), headers=SSE)
    answer = litellm.chat(model(provider), FIELDS, stream=True)
    await anext(answer)
    await gate.arrivals()
    await answer.aclose()
    async with asyncio.timeout(10):
        await provider.idle()
    assert provider.asked[0].state == "aborted"
