"""openai-python against the API on a real socket."""

from collections.abc import AsyncIterator

import openai
import pytest

from gateway.errors import GatewayError
from gateway.relay.types import Finish
from gateway.text.model import ServedModel
from tests.fakes.answers import ScriptedGenerator, say
from tests.fakes.server import AppServer

TEXT = "Hello 😀 世界, you all."
MESSAGES: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "Hi"}]


@pytest.fixture
async def client(server: AppServer) -> AsyncIterator[openai.AsyncOpenAI]:
    """An openai-python client without retries."""
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as opened:
        yield opened


async def test_chat(client: openai.AsyncOpenAI, generator: ScriptedGenerator, model: ServedModel) -> None:
    """A whole chat answer has its text, finish reason and usage, and the prompt was rendered by the template."""
    answer = await client.chat.completions.create(model="tiny", messages=MESSAGES)
    assert answer.choices[0].message.content == TEXT
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    prompt = model.encoder.encode_now("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert list(generator.requests[0].prompt) == prompt
    assert answer.usage.prompt_tokens == len(prompt)
    assert answer.usage.completion_tokens == len(model.encoder.encode_now(TEXT))
    assert answer.id == generator.requests[0].request_id
    assert generator.answers[0].closes == 1


async def test_chat_stream(client: openai.AsyncOpenAI, generator: ScriptedGenerator) -> None:
    """A streamed chat answer opens with the role, gives the same text and one finish reason, and no usage unasked."""
    stream = await client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True)
    chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == TEXT
    reasons = [chunk.choices[0].finish_reason for chunk in chunks]
    assert [reason for reason in reasons if reason is not None] == ["stop"]
    assert reasons[-1] == "stop"
    assert all(chunk.usage is None for chunk in chunks)
    await generator.all_closed()


async def test_chat_stream_usage(client: openai.AsyncOpenAI, generator: ScriptedGenerator, model: ServedModel) -> None:
    """Asked for, usage comes in a last chunk without choices, with the prefill's cached tokens."""
    ids = model.encoder.encode_now(TEXT)
    generator.script = lambda request: say(ids, cached_tokens=6)
    stream = await client.chat.completions.create(
        model="tiny", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    *others, last = [chunk async for chunk in stream]
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == len(ids)
    assert last.usage.prompt_tokens_details is not None
    assert last.usage.prompt_tokens_details.cached_tokens == 6
    assert all(chunk.usage is None and "usage" in chunk.model_fields_set for chunk in others)


async def test_completion(client: openai.AsyncOpenAI) -> None:
    """A whole completion."""
    answer = await client.completions.create(model="tiny", prompt="Hi", max_tokens=50)
    assert answer.choices[0].text == TEXT


async def test_completion_stream(client: openai.AsyncOpenAI) -> None:
    """A streamed completion."""
    stream = await client.completions.create(model="tiny", prompt="Hi", max_tokens=50, stream=True)
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].text for chunk in chunks) == TEXT
    assert chunks[-1].choices[0].finish_reason == "stop"


@pytest.mark.parametrize("stream", [False, True])
async def test_batch_and_n(
    client: openai.AsyncOpenAI, generator: ScriptedGenerator, model: ServedModel, stream: bool
) -> None:
    """Several prompts with several choices each are fanned out, indices kept, prompts counted once in one usage."""
    texts = ["one.", "two 😀.", "three", "four"]

    def script(request: object) -> list[object]:
        ids = model.encoder.encode_now(texts[len(generator.answers)])
        return list(say(ids, cached_tokens=1))

    generator.script = script  # type: ignore[assignment]
    prompts = [[10, 11, 12], [20, 21]]
    got = dict.fromkeys(range(4), "")
    if stream:
        chunks = await client.completions.create(
            model="tiny", prompt=prompts, n=2, stream=True, stream_options={"include_usage": True}
        )
        async for chunk in chunks:
            for choice in chunk.choices:
                got[choice.index] += choice.text
            usage = chunk.usage
    else:
        answer = await client.completions.create(model="tiny", prompt=prompts, n=2)
        got = {choice.index: choice.text for choice in answer.choices}
        usage = answer.usage
    assert list(got.values()) == texts
    assert [list(request.prompt) for request in generator.requests] == [prompts[0]] * 2 + [prompts[1]] * 2
    assert len({request.request_id for request in generator.requests}) == 4
    assert usage is not None
    assert usage.prompt_tokens == 5
    assert usage.completion_tokens == sum(len(model.encoder.encode_now(text)) for text in texts)
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens == 2
    await generator.all_closed()


async def test_stop_string(client: openai.AsyncOpenAI, generator: ScriptedGenerator, model: ServedModel) -> None:
    """A stop string cuts the text, ends the answer at the id that completed it, and its name is reported."""
    answer = await client.chat.completions.create(model="tiny", messages=MESSAGES, stop=["界,", "never"])
    assert answer.choices[0].message.content == "Hello 😀 世"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].model_extra is not None
    assert answer.choices[0].model_extra["stop_reason"] == "界,"
    assert answer.usage is not None
    assert generator.answers[0].stopped_at == answer.usage.completion_tokens
    assert "界," in model.tokenizer.decode(model.encoder.encode_now(TEXT)[: answer.usage.completion_tokens])


async def test_chat_logprobs(client: openai.AsyncOpenAI, generator: ScriptedGenerator, model: ServedModel) -> None:
    """Chat log-probabilities name each token's text and bytes, and its alternatives."""
    ids = model.encoder.encode_now("a😀")
    generator.script = lambda request: say(ids, with_logprobs=True)
    for stream in (False, True):
        entries = []
        if stream:
            chunks = await client.chat.completions.create(
                model="tiny", messages=MESSAGES, logprobs=True, top_logprobs=1, stream=True
            )
            async for chunk in chunks:
                part = chunk.choices[0].logprobs
                entries += (part.content or []) if part else []
        else:
            answer = await client.chat.completions.create(
                model="tiny", messages=MESSAGES, logprobs=True, top_logprobs=1
            )
            whole = answer.choices[0].logprobs
            assert whole is not None
            entries = whole.content or []
        assert b"".join(bytes(entry.bytes or []) for entry in entries) == "a😀".encode()
        assert [len(entry.top_logprobs) for entry in entries] == [1] * len(ids)
        assert generator.requests[-1].sampling.logprobs == 1


async def test_completion_logprobs(
    client: openai.AsyncOpenAI, generator: ScriptedGenerator, model: ServedModel
) -> None:
    """Completion log-probabilities have one entry per token, with the character offset of each."""
    ids = model.encoder.encode_now("a b")
    generator.script = lambda request: say(ids, with_logprobs=True)
    answer = await client.completions.create(model="tiny", prompt="x", logprobs=2)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert "".join(logprobs.tokens) == "a b"
    assert logprobs.text_offset == [0, *([1] if len(ids) == 2 else [1, 2])]
    assert logprobs.token_logprobs == [-0.5] * len(ids)


async def test_echo(client: openai.AsyncOpenAI) -> None:
    """On request a completion begins with its prompt's text."""
    answer = await client.completions.create(model="tiny", prompt="Well. ", echo=True, max_tokens=50)
    assert answer.choices[0].text == "Well. " + TEXT


async def test_terminator(client: openai.AsyncOpenAI, generator: ScriptedGenerator, model: ServedModel) -> None:
    """The end token is counted and is no text, also where special tokens are shown."""
    end = model.tokenizer.token_to_id("<|im_end|>")
    assert end is not None
    ids = [*model.encoder.encode_now("Yes."), end]
    generator.script = lambda request: say(ids, finish=Finish("stop", True, None, len(ids), 0))
    answer = await client.chat.completions.create(
        model="tiny", messages=MESSAGES, extra_body={"skip_special_tokens": False}
    )
    assert answer.choices[0].message.content == "Yes."
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(ids)


async def test_token_ids_and_trace(
    client: openai.AsyncOpenAI, generator: ScriptedGenerator, model: ServedModel
) -> None:
    """On request each chunk has its ids and who made them, and the first the prompt's ids."""
    stream = await client.chat.completions.create(
        model="tiny",
        messages=MESSAGES,
        stream=True,
        extra_body={"return_token_ids": True},
        extra_headers={"x-pdd-trace": "1"},
    )
    chunks = [chunk.model_dump() async for chunk in stream]
    assert chunks[0]["prompt_token_ids"] == list(generator.requests[0].prompt)
    ids = [token_id for chunk in chunks for token_id in chunk["choices"][0].get("token_ids") or ()]
    assert ids == model.encoder.encode_now(TEXT)
    origins = [chunk["pdd"] for chunk in chunks if "pdd" in chunk]
    assert [origin["position"] for origin in origins] == list(range(len(ids)))
    assert {origin["role"] for origin in origins} == {"P", "RLD", "MD"}


async def test_trace_of_a_whole_answer(client: openai.AsyncOpenAI, model: ServedModel) -> None:
    """A traced whole answer lists its segments."""
    answer = await client.chat.completions.create(model="tiny", messages=MESSAGES, extra_headers={"x-pdd-trace": "1"})
    assert answer.model_extra is not None
    segments = answer.model_extra["pdd"]
    assert [segment["role"] for segment in segments] == ["P", "RLD", "MD"]
    assert sum(segment["tokens"] for segment in segments) == len(model.encoder.encode_now(TEXT))


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, openai.BadRequestError),
        (401, openai.AuthenticationError),
        (403, openai.PermissionDeniedError),
        (404, openai.NotFoundError),
        (429, openai.RateLimitError),
        (500, openai.InternalServerError),
        (503, openai.InternalServerError),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_failures_before_the_first_event(
    client: openai.AsyncOpenAI,
    generator: ScriptedGenerator,
    status: int,
    kind: type[openai.APIStatusError],
    stream: bool,
) -> None:
    """What fails before anything was sent is the matching exception of the SDK, streamed or not."""
    generator.script = lambda request: [GatewayError(status, "no", code="c", param="p", retry_after_s=1.2)]
    with pytest.raises(kind) as caught:
        await client.chat.completions.create(model="tiny", messages=MESSAGES, stream=stream)
    assert caught.value.status_code == status
    assert (caught.value.code, caught.value.param) == ("c", "p")
    assert caught.value.response.headers["retry-after"] == "2"
    assert caught.value.response.headers["x-request-id"].startswith("chatcmpl-")
    await generator.all_closed()


async def test_failure_in_the_stream(
    client: openai.AsyncOpenAI, generator: ScriptedGenerator, model: ServedModel
) -> None:
    """What fails later is an error in the stream, after the text so far."""
    ids = model.encoder.encode_now(TEXT)
    generator.script = lambda request: [*say(ids)[:3], GatewayError(502, "engines are gone")]
    stream = await client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True)
    with pytest.raises(openai.APIError, match="engines are gone"):
        async for _ in stream:
            pass
    await generator.all_closed()
