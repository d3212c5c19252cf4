"""The Anthropic SDK at ``/v1/messages``."""

from typing import Any

import anthropic
import pydantic

from tests.compat.clients.kit import CALL, CHAT, KEY, MODEL, PLACE, SCHEMA, equal, refused, run

TOOL: Any = {"name": "get", "description": "Look a place up.", "input_schema": SCHEMA}


class Place(pydantic.BaseModel):
    """What is asked for."""

    city: str
    days: int


def client(url: str) -> Any:
    """Return a client without retries."""
    return anthropic.Anthropic(base_url=url, api_key=KEY, max_retries=0)


def ask(text: str, **more: Any) -> Any:
    """Return the fields of a message."""
    return {"model": MODEL, "max_tokens": 400, "messages": [{"role": "user", "content": text}], **more}


def messages(url: str) -> None:
    """System blocks, usage, the count of tokens."""
    system = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    answer = client(url).messages.create(**ask(CHAT, system=system))
    equal((answer.content[-1].text, answer.stop_reason), ("Sure.", "end_turn"))
    counted = client(url).messages.count_tokens(model=MODEL, messages=ask(CHAT)["messages"], system=system)
    told = answer.usage
    equal(told.input_tokens + (told.cache_read_input_tokens or 0), counted.input_tokens)


def stream(url: str) -> None:
    """The text as the SDK hands it out."""
    with client(url).messages.stream(**ask(CHAT)) as events:
        equal("".join(events.text_stream), "Sure.")
        equal(events.get_final_message().stop_reason, "end_turn")


def tools(url: str) -> None:
    """A use, its result, and the end; a forced one."""
    asked = ask(CALL, tools=[TOOL])
    answer = client(url).messages.create(**asked)
    use = answer.content[-1]
    equal((answer.stop_reason, use.type, use.name, use.input), ("tool_use", "tool_use", "get", PLACE))
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "Sunny."}
    asked["messages"] += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
    equal(client(url).messages.create(**asked).content[-1].text, "Sure.")
    for choice in ({"type": "any"}, {"type": "tool", "name": "get"}):
        forced = client(url).messages.create(**ask(CALL, tools=[TOOL], tool_choice=choice))
        equal((forced.content[-1].type, forced.content[-1].input), ("tool_use", PLACE))


def tools_stream(url: str) -> None:
    """The SDK puts the use together."""
    with client(url).messages.stream(**ask(CALL, tools=[TOOL])) as events:
        answer = events.get_final_message()
    equal([block.type for block in answer.content], ["thinking", "text", "tool_use"])
    equal((answer.stop_reason, answer.content[-1].input), ("tool_use", PLACE))


def reasoning(url: str) -> None:
    """A thinking block with a signature."""
    thought = client(url).messages.create(**ask(CHAT)).content[0]
    equal((thought.type, thought.thinking, bool(thought.signature)), ("thinking", "so", True))


def structured_output(url: str) -> None:
    """A model of pydantic's."""
    answer = client(url).messages.parse(**ask(CHAT), output_format=Place)
    equal(answer.parsed_output, Place(**PLACE))


def errors(url: str) -> None:
    """The SDK's own classes."""
    create = client(url).messages.create
    refused(anthropic.NotFoundError, lambda: create(**ask(CHAT) | {"model": "absent"}))
    refused(anthropic.BadRequestError, lambda: create(**ask(CHAT) | {"max_tokens": 0}))
    refused(anthropic.BadRequestError, lambda: create(**ask("word " * 9000)))


if __name__ == "__main__":
    features = (messages, stream, tools, tools_stream, reasoning, structured_output, errors)
    run("anthropic", {one.__name__: one for one in features})
