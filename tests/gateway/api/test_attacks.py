"""Requests that were made to hurt: each is refused at once, by name, and costs nobody else anything."""

from typing import Any

import pytest

from tests.fakes.answers import ScriptedGenerator
from tests.fakes.server import AppServer
from tests.gateway.api.attacks import MUCH_JSON
from tests.gateway.api.raw import CHAT, connect

PATH = "/v1/chat/completions"


async def refuse(server: AppServer, body: dict[str, Any]) -> dict[str, Any]:
    """Return the error of a request that is refused with a 400."""
    async with connect(server) as connection:
        await connection.post(PATH, body)
        status, _, answer = await connection.read_json()
        assert status == 400, answer
        error: dict[str, Any] = answer["error"]
        return error


@pytest.mark.parametrize("change", MUCH_JSON.values(), ids=MUCH_JSON.keys())
@pytest.mark.parametrize("stream", [False, True])
async def test_text_that_is_parsed_again_has_the_bounds_of_a_body(
    server: AppServer, generator: ScriptedGenerator, change: dict[str, Any], stream: bool
) -> None:
    """Tool calls' arguments are refused for their marks, their depth and their sum before they are parsed."""
    error = await refuse(server, {**CHAT, **change, "stream": stream})
    assert (error["param"], error["code"]) == ("messages", "template_error")
    assert generator.requests == []
