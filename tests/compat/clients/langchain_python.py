"""LangChain: ``ChatOpenAI`` at chat and at Responses, ``ChatAnthropic`` at messages."""

from typing import Any

import anthropic
import openai
import pydantic
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI

from tests.compat.clients.kit import CALL, CHAT, KEY, MODEL, PLACE, TOOL, equal, refused, run


class Place(pydantic.BaseModel):
    """What is asked for."""

    city: str
    days: int


def model(url: str, **more: Any) -> Any:
    """Return the model at OpenAI's API."""
    return ChatOpenAI(**{"model": MODEL, "base_url": f"{url}/v1", "api_key": KEY, "max_retries": 0} | more)


def claude(url: str, **more: Any) -> Any:
    """Return the model at Anthropic's API."""
    fields = {"model": MODEL, "base_url": url, "api_key": KEY, "max_retries": 0, "max_tokens": 400}
    return ChatAnthropic(**fields | more)


def gather(chunks: Any) -> Any:
    """Put a stream's chunks together, as LangChain does."""
    first, *others = chunks
    for chunk in others:
        first += chunk
    return first


def check_loop(bound: Any) -> None:
    """A call, its result, and the end."""
    turn: list[Any] = [HumanMessage(CALL)]
    answer = bound.invoke(turn)
    (call,) = answer.tool_calls
    equal((call["name"], call["args"]), ("get", PLACE))
    turn += [answer, ToolMessage("Sunny.", tool_call_id=call["id"])]
    equal(bound.invoke(turn).text, "Sure.")


def chat(url: str) -> None:
    """A whole answer."""
    equal(model(url).invoke(CHAT).text, "Sure.")


def stream(url: str) -> None:
    """Chunks with the usage."""
    whole = gather(model(url, stream_usage=True).stream(CHAT))
    equal((whole.text, whole.usage_metadata["output_tokens"] > 5), ("Sure.", True))


def tools(url: str) -> None:
    """Also forced ones."""
    check_loop(model(url).bind_tools([TOOL]))
    for choice in ("any", "get"):
        (call,) = model(url).bind_tools([TOOL], tool_choice=choice).invoke(CALL).tool_calls
        equal((call["name"], call["args"]), ("get", PLACE))


def tools_stream(url: str) -> None:
    """Chunks of a call."""
    (call,) = gather(model(url).bind_tools([TOOL]).stream(CALL)).tool_calls
    equal((call["name"], call["args"]), ("get", PLACE))


def reasoning(url: str) -> None:
    """Of Responses (whole: it leaves out what streams of it say) and messages; of chat it leaves out the fields."""
    (thought, _) = model(url, use_responses_api=True).invoke(CHAT).content
    equal([part["text"] for part in thought["content"]], ["so"])
    for answer in (claude(url).invoke(CHAT), gather(claude(url).stream(CHAT))):
        equal([block["thinking"] for block in answer.content if "thinking" in block], ["so"])
        equal(answer.text, "Sure.")


def structured_output(url: str) -> None:
    """By a schema, and by a forced function."""
    for method in ("json_schema", "function_calling"):
        equal(model(url).with_structured_output(Place, method=method).invoke(CHAT), Place(**PLACE))
    equal(claude(url).with_structured_output(Place).invoke(CHAT), Place(**PLACE))


def responses(url: str) -> None:
    """Text, streams and a tool's loop."""
    one = model(url, use_responses_api=True)
    equal(one.invoke(CHAT).text, "Sure.")
    equal(gather(one.stream(CHAT)).text, "Sure.")
    check_loop(one.bind_tools([TOOL]))


def messages(url: str) -> None:
    """The same."""
    one = claude(url)
    equal(one.invoke(CHAT).text, "Sure.")
    equal(gather(one.stream(CHAT)).text, "Sure.")
    check_loop(one.bind_tools([TOOL]))
    (call,) = gather(one.bind_tools([TOOL]).stream(CALL)).tool_calls
    equal((call["name"], call["args"]), ("get", PLACE))


def errors(url: str) -> None:
    """The SDKs' classes."""
    refused(openai.NotFoundError, lambda: model(url, model="absent").invoke(CHAT))
    refused(openai.BadRequestError, lambda: model(url).invoke("word " * 9000))
    refused(anthropic.NotFoundError, lambda: claude(url, model="absent").invoke(CHAT))


if __name__ == "__main__":
    features = (chat, stream, tools, tools_stream, reasoning, structured_output, responses, messages, errors)
    run("langchain-openai langchain-anthropic", {one.__name__: one for one in features})
