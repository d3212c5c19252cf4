"""litellm as a library: its OpenAI, Anthropic and Responses sides."""

import json
from typing import Any

import litellm
import openai

from tests.compat.clients.kit import CALL, CHAT, FUNCTION, KEY, MODEL, PLACE, SCHEMA, TOOL, equal, refused, run


def ask(url: str, text: str, **more: Any) -> Any:
    """Return an answer of litellm's."""
    fields = {"model": f"openai/{MODEL}", "messages": [{"role": "user", "content": text}]}
    return litellm.completion(**fields | more, api_base=f"{url}/v1", api_key=KEY, num_retries=0, max_retries=0)


def chat(url: str) -> None:
    """A whole answer."""
    equal(ask(url, CHAT).choices[0].message.content, "Sure.")


def stream(url: str) -> None:
    """Chunks, put together by litellm."""
    chunks = list(ask(url, CHAT, stream=True, stream_options={"include_usage": True}))
    whole = litellm.stream_chunk_builder(chunks)
    equal((whole.choices[0].message.content, whole.usage.completion_tokens > 5), ("Sure.", True))


def tools(url: str) -> None:
    """A call, its result, and the end."""
    message = ask(url, CALL, tools=[TOOL]).choices[0].message
    (call,) = message.tool_calls
    equal((call.function.name, json.loads(call.function.arguments)), ("get", PLACE))
    result = {"role": "tool", "tool_call_id": call.id, "content": "Sunny."}
    turn = [{"role": "user", "content": CALL}, message.model_dump(), result]
    equal(ask(url, "", messages=turn, tools=[TOOL]).choices[0].message.content, "Sure.")


def tools_stream(url: str) -> None:
    """The same in chunks."""
    whole = litellm.stream_chunk_builder(list(ask(url, CALL, tools=[TOOL], stream=True)))
    (call,) = whole.choices[0].message.tool_calls
    equal((call.function.name, json.loads(call.function.arguments)), ("get", PLACE))


def reasoning(url: str) -> None:
    """Whole and streamed."""
    equal(ask(url, CHAT).choices[0].message.reasoning_content, "so")
    deltas = [chunk.choices[0].delta for chunk in ask(url, CHAT, stream=True)]
    equal("".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas), "so")


def structured_output(url: str) -> None:
    """JSON by a schema."""
    form = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA, "strict": True}}
    equal(json.loads(ask(url, CHAT, response_format=form).choices[0].message.content), PLACE)


def responses(url: str) -> None:
    """The Responses API through litellm."""
    tool = {"type": "function", **FUNCTION}
    answer = litellm.responses(
        model=f"openai/{MODEL}", input=CALL, tools=[tool], api_base=f"{url}/v1", api_key=KEY, max_retries=0
    )
    call = answer.output[-1]
    equal((call.type, call.name, json.loads(call.arguments)), ("function_call", "get", PLACE))


def messages(url: str) -> None:
    """An Anthropic server by litellm's own client of that protocol."""
    fields = {"model": f"anthropic/{MODEL}", "messages": [{"role": "user", "content": CALL}], "tools": [TOOL]}
    answer = litellm.completion(**fields, api_base=url, api_key=KEY, max_tokens=400)
    (call,) = answer.choices[0].message.tool_calls
    equal((call.function.name, json.loads(call.function.arguments)), ("get", PLACE))
    streamed = litellm.completion(**fields, api_base=url, api_key=KEY, max_tokens=400, stream=True)
    (call,) = litellm.stream_chunk_builder(list(streamed)).choices[0].message.tool_calls
    equal(json.loads(call.function.arguments), PLACE)


def errors(url: str) -> None:
    """litellm's classes, which are openai's."""
    refused(openai.NotFoundError, lambda: ask(url, CHAT, model="openai/absent"))
    refused(openai.BadRequestError, lambda: ask(url, CHAT, temperature=-1))
    refused(litellm.ContextWindowExceededError, lambda: ask(url, "word " * 9000))


if __name__ == "__main__":
    litellm.suppress_debug_info = True
    features = (chat, stream, tools, tools_stream, reasoning, structured_output, responses, messages, errors)
    run("litellm", {one.__name__: one for one in features})
