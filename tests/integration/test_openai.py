"""openai-python against the gateway over real engines in two regions."""

import openai
import pytest

from gateway.demo.cluster import MODEL
from tests.integration.regions import Regions

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="session")]


def _client(regions: Regions) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{regions.base_url}/v1", api_key="any", max_retries=0)


async def test_chat_streamed_and_whole_agree(whole: Regions) -> None:
    """The same question gives the same text, streamed over two regions or whole, with usage and a finish reason."""
    messages: list[openai.types.chat.ChatCompletionMessageParam] = [
        {"role": "user", "content": whole.fresh_prompt(800)}
    ]
    async with _client(whole) as client:
        stream = await client.chat.completions.create(
            model=MODEL,
            messages=messages,
            max_tokens=100,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
        whole_answer = await client.chat.completions.create(
            model=MODEL, messages=messages, max_tokens=100, temperature=0
        )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole_answer.choices[0].message.content
    assert chunks[-1].usage is not None and whole_answer.usage is not None
    assert chunks[-1].usage.completion_tokens == whole_answer.usage.completion_tokens
    assert whole_answer.choices[0].finish_reason in ("stop", "length")


async def test_completions_streamed_and_whole_agree(whole: Regions) -> None:
    """The same holds for completions, with token ids as the prompt."""
    prompt = list(range(300, 900))
    async with _client(whole) as client:
        stream = await client.completions.create(model=MODEL, prompt=prompt, max_tokens=60, temperature=0, stream=True)
        text = "".join([chunk.choices[0].text async for chunk in stream])
        answer = await client.completions.create(model=MODEL, prompt=prompt, max_tokens=60, temperature=0)
    assert text == answer.choices[0].text


async def test_stop_string_ends_the_answer(whole: Regions) -> None:
    """A stop string is matched in the gateway over the joined text; the answer ends before it."""
    async with _client(whole) as client:
        messages: list[openai.types.chat.ChatCompletionMessageParam] = [
            {"role": "user", "content": whole.fresh_prompt(600)}
        ]
        free = await client.chat.completions.create(model=MODEL, messages=messages, max_tokens=80, temperature=0)
        text = free.choices[0].message.content or ""
        stop = text[len(text) // 2 :][:6]
        cut = await client.chat.completions.create(
            model=MODEL, messages=messages, max_tokens=80, temperature=0, stop=[stop]
        )
    assert cut.choices[0].message.content == text[: text.index(stop)]
    assert cut.choices[0].finish_reason == "stop"


async def test_unknown_model_and_too_long_prompt_are_refused(whole: Regions) -> None:
    """Errors are OpenAI's, by the client's own classes."""
    async with _client(whole) as client:
        with pytest.raises(openai.NotFoundError):
            await client.completions.create(model="no-such-model", prompt="hello")
        with pytest.raises(openai.BadRequestError) as caught:
            await client.completions.create(model=MODEL, prompt=[5] * 20_000)
    assert caught.value.code == "context_length_exceeded"
    assert await whole.engines_idle(1.0)
