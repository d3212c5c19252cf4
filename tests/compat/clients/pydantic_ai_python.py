"""pydantic-ai: agents over its OpenAI chat, Responses and Anthropic models."""

from typing import Any

import pydantic
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ThinkingPart
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from tests.compat.clients.kit import CALL, CHAT, KEY, MODEL, PLACE, equal, run


class Place(pydantic.BaseModel):
    """What is asked for."""

    city: str
    days: int


def model(url: str, kind: Any = OpenAIChatModel, name: str = MODEL) -> Any:
    """Return a model without retries."""
    if kind is AnthropicModel:
        claude = AsyncAnthropic(base_url=url, api_key=KEY, max_retries=0)
        settings = {"max_tokens": 400}  # its own default is more than the whole context of the stand's model
        return AnthropicModel(name, provider=AnthropicProvider(anthropic_client=claude), settings=settings)
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0)
    return kind(name, provider=OpenAIProvider(openai_client=client))


def with_tool(one: Any, used: list[Any]) -> Any:
    """Return an agent with a tool that notes its use."""
    agent = Agent(one)

    @agent.tool_plain
    def get(city: str, days: int) -> str:
        """Look a place up."""
        used.append({"city": city, "days": days})
        return "Sunny."

    return agent


async def chat(url: str) -> None:
    """A whole run."""
    equal((await Agent(model(url)).run(CHAT)).output, "Sure.")


async def stream(url: str, kind: Any = OpenAIChatModel) -> None:
    """The text in pieces."""
    async with Agent(model(url, kind)).run_stream(CHAT) as result:
        pieces = [piece async for piece in result.stream_text(delta=True, debounce_by=None)]
    equal("".join(pieces), "Sure.")


async def tools(url: str, kind: Any = OpenAIChatModel) -> None:
    """The agent's loop: a call, the function, the end."""
    used: list[Any] = []
    equal((await with_tool(model(url, kind), used).run(CALL)).output, "Sure.")
    equal(used, [PLACE])


async def tools_stream(url: str, kind: Any = OpenAIChatModel) -> None:
    """The same, streamed to its end."""
    used: list[Any] = []
    async with with_tool(model(url, kind), used).iter(CALL) as run_:
        async for node in run_:
            if Agent.is_model_request_node(node):
                async with node.stream(run_.ctx) as events:
                    async for _ in events:
                        pass
    equal((run_.result.output, used), ("Sure.", [PLACE]))


async def reasoning(url: str) -> None:
    """A thinking part of each protocol."""
    for kind in (OpenAIChatModel, OpenAIResponsesModel, AnthropicModel):
        result = await Agent(model(url, kind)).run(CHAT)
        parts = result.all_messages()[-1].parts
        (thought,) = [part for part in parts if isinstance(part, ThinkingPart)]
        raw = (thought.provider_details or {}).get("raw_content")  # where it keeps what is no summary
        equal(raw or [thought.content], ["so"])


async def structured_output(url: str) -> None:
    """``output_type`` as a forced tool, and as a schema."""
    equal((await Agent(model(url), output_type=Place).run(CHAT)).output, Place(**PLACE))
    equal((await Agent(model(url), output_type=NativeOutput(Place)).run(CHAT)).output, Place(**PLACE))


async def responses(url: str) -> None:
    """Text, structure and the loop, whole and streamed."""
    one = model(url, OpenAIResponsesModel)
    equal((await Agent(one).run(CHAT)).output, "Sure.")
    equal((await Agent(one, output_type=Place).run(CHAT)).output, Place(**PLACE))
    for feature in (tools, stream, tools_stream):
        await feature(url, OpenAIResponsesModel)


async def messages(url: str) -> None:
    """The same."""
    one = model(url, AnthropicModel)
    equal((await Agent(one).run(CHAT)).output, "Sure.")
    equal((await Agent(one, output_type=Place).run(CHAT)).output, Place(**PLACE))
    for feature in (tools, stream, tools_stream):
        await feature(url, AnthropicModel)


async def errors(url: str) -> None:
    """Its own class, with the status."""
    for name, text, status in (("absent", CHAT, 404), (MODEL, "word " * 9000, 400)):
        try:
            await Agent(model(url, name=name)).run(text)
        except ModelHTTPError as error:
            equal(error.status_code, status)
        else:
            raise AssertionError("no ModelHTTPError")


if __name__ == "__main__":
    features = (chat, stream, tools, tools_stream, reasoning, structured_output, responses, messages, errors)
    run("pydantic-ai-slim", {one.__name__: one for one in features})
