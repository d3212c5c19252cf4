"""openai-python: chat, completions' parts, tools, structured answers and the Responses API."""

import json
from typing import Any

import openai
import pydantic

from tests.compat.clients.kit import CALL, CHAT, FUNCTION, KEY, MODEL, PLACE, TOOL, equal, refused, run


class Place(pydantic.BaseModel):
    """What is asked for."""

    city: str
    days: int


def client(url: str) -> Any:
    """Return a client without retries."""
    return openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0)


def ask(text: str, **more: Any) -> Any:
    """Return the fields of a chat."""
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], **more}


def chat(url: str) -> None:
    """A whole answer."""
    answer = client(url).chat.completions.create(**ask(CHAT))
    equal((answer.choices[0].message.content, answer.choices[0].finish_reason), ("Sure.", "stop"))


def stream(url: str) -> None:
    """The same in chunks, with the usage."""
    fields = ask(CHAT, stream=True, stream_options={"include_usage": True})
    chunks = list(client(url).chat.completions.create(**fields))
    equal("".join(one.choices[0].delta.content or "" for one in chunks if one.choices), "Sure.")
    equal(chunks[-1].usage.completion_tokens > 5, True)


def tools(url: str) -> None:
    """A call, its result, and the end."""
    asked = ask(CALL, tools=[TOOL])
    message = client(url).chat.completions.create(**asked).choices[0].message
    (call,) = message.tool_calls
    equal((call.function.name, json.loads(call.function.arguments)), ("get", PLACE))
    asked["messages"] += [message, {"role": "tool", "tool_call_id": call.id, "content": "Sunny."}]
    equal(client(url).chat.completions.create(**asked).choices[0].message.content, "Sure.")
    named = ask(CALL, tools=[TOOL], tool_choice={"type": "function", "function": {"name": "get"}})
    for choice in (named["tool_choice"], "required"):
        message = client(url).chat.completions.create(**named | {"tool_choice": choice}).choices[0].message
        (call,) = message.tool_calls
        equal((call.function.name, json.loads(call.function.arguments)), ("get", PLACE))


def tools_stream(url: str) -> None:
    """The SDK's helper puts the call together."""
    with client(url).chat.completions.stream(**ask(CALL, tools=[TOOL])) as events:
        message = events.get_final_completion().choices[0].message
    (call,) = message.tool_calls
    equal((call.function.name, json.loads(call.function.arguments)), ("get", PLACE))
    equal(message.content, "Sure.")


def reasoning(url: str) -> None:
    """Both field names, whole and streamed."""
    message = client(url).chat.completions.create(**ask(CHAT)).choices[0].message
    equal(message.model_extra, {"reasoning": "so", "reasoning_content": "so"})
    chunks = client(url).chat.completions.create(**ask(CHAT, stream=True))
    extras = [one.choices[0].delta.model_extra or {} for one in chunks if one.choices]
    equal("".join(one.get("reasoning_content") or "" for one in extras), "so")


def structured_output(url: str) -> None:
    """A model of pydantic's from a whole answer and from a stream."""
    whole = client(url).chat.completions.parse(**ask(CHAT), response_format=Place)
    equal(whole.choices[0].message.parsed, Place(**PLACE))
    with client(url).chat.completions.stream(**ask(CHAT), response_format=Place) as events:
        equal(events.get_final_completion().choices[0].message.parsed, Place(**PLACE))


def responses(url: str) -> None:
    """Text, thoughts, a call, the next turn, a structured answer, a stream."""
    api, tool = client(url).responses, {"type": "function", "strict": False, **FUNCTION}
    first = api.create(model=MODEL, input=CALL, tools=[tool])
    equal([item.type for item in first.output], ["reasoning", "message", "function_call"])
    call = first.output[-1]
    equal((call.name, json.loads(call.arguments), first.output_text), ("get", PLACE, "Sure."))
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "Sunny."}
    turn = [{"role": "user", "content": CALL}, *first.output, result]
    equal(api.create(model=MODEL, input=turn, tools=[tool]).output_text, "Sure.")
    equal(api.parse(model=MODEL, input=CHAT, text_format=Place).output_parsed, Place(**PLACE))
    with api.stream(model=MODEL, input=CALL, tools=[tool]) as events:
        equal([item.type for item in events.get_final_response().output], ["reasoning", "message", "function_call"])


def errors(url: str) -> None:
    """The SDK's own classes."""
    create = client(url).chat.completions.create
    refused(openai.NotFoundError, lambda: create(**ask(CHAT) | {"model": "absent"}))
    refused(openai.BadRequestError, lambda: create(**ask(CHAT, temperature=-1)))
    refused(openai.BadRequestError, lambda: create(**ask("word " * 9000)))
    refused(openai.BadRequestError, lambda: client(url).responses.create(model=MODEL, input=CHAT, background=True))


if __name__ == "__main__":
    features = (chat, stream, tools, tools_stream, reasoning, structured_output, responses, errors)
    run("openai", {one.__name__: one for one in features})
