"""instructor: models of pydantic's out of calls, schemas, streams and messages."""

from typing import Any

import anthropic
import instructor
import openai
import pydantic
from instructor.core import InstructorRetryException

from tests.compat.clients.kit import CALL, CHAT, KEY, MODEL, PLACE, equal, refused, run


class Place(pydantic.BaseModel):
    """What is asked for."""

    city: str
    days: int


def client(url: str, mode: Any = instructor.Mode.TOOLS) -> Any:
    """Return its client over openai-python."""
    return instructor.from_openai(openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0), mode=mode)


def ask(**more: Any) -> Any:
    """Return the fields of a chat."""
    return {"model": MODEL, "messages": [{"role": "user", "content": CHAT}], "response_model": Place, **more}


def tools(url: str) -> None:
    """Its default mode: a forced call."""
    equal(client(url).chat.completions.create(**ask()).model_dump(), PLACE)


def tools_stream(url: str) -> None:
    """Ever more of a model, as it is written."""
    *_, last = client(url).chat.completions.create_partial(**ask())
    equal(last.model_dump(), PLACE)


def structured_output(url: str) -> None:
    """JSON by a schema, and any JSON."""
    for mode in (instructor.Mode.JSON_SCHEMA, instructor.Mode.JSON):
        equal(client(url, mode).chat.completions.create(**ask()).model_dump(), PLACE)


def responses(url: str) -> None:
    """The Responses API."""
    one = client(url, instructor.Mode.RESPONSES_TOOLS)
    equal(one.responses.create(model=MODEL, input=CALL, response_model=Place).model_dump(), PLACE)


def messages(url: str) -> None:
    """Over the Anthropic SDK."""
    sdk = anthropic.Anthropic(base_url=url, api_key=KEY, max_retries=0)
    equal(instructor.from_anthropic(sdk).messages.create(**ask(max_tokens=400)).model_dump(), PLACE)


def errors(url: str) -> None:
    """Its own class, after it has tried again."""
    create = client(url).chat.completions.create
    refused(InstructorRetryException, lambda: create(**ask(model="absent"), max_retries=1))


if __name__ == "__main__":
    features = (tools, tools_stream, structured_output, responses, messages, errors)
    run("instructor", {one.__name__: one for one in features})
