"""Fields that clients may not set, by name and by rule."""

from dataclasses import replace

import httpx
import pytest

from gateway.api.app import ApiState, build_app
from gateway.api.fields import is_internal, without_internal
from gateway.errors import GatewayError
from policies.rules import Rules
from policies.tenant_rules import ClientFieldRules
from tests.fakes.answers import ScriptedGenerator
from tests.fakes.server import AppServer
from tests.gateway.api.access import make_access
from tests.gateway.api.raw import CHAT

STRIP = ClientFieldRules(internal="strip")


@pytest.mark.parametrize(
    "name",
    ["kv_transfer_params", "KV_Transfer_Params", "kv-transfer-params", " api_base", "bootstrap_room", "X-Tenant-Id"],
)
def test_spellings(name: str) -> None:
    """Neither case nor dashes make another field of it."""
    assert is_internal(name)


@pytest.mark.parametrize("name", ["model", "temperature", "xylophone", "user", "metadata", "chat_template_kwargs"])
def test_others_are_free(name: str) -> None:
    """Fields of clients are theirs."""
    assert not is_internal(name)


def test_refused_or_stripped() -> None:
    """The rules say which; nothing else of the body changes."""
    body = {"model": "m", "api_base": "http://10.0.0.1", "bootstrap_" + "x" * 1000: 1}
    assert without_internal(body, STRIP) == {"model": "m"}
    with pytest.raises(GatewayError) as refused:
        without_internal(body, ClientFieldRules())
    assert (refused.value.status, refused.value.code, refused.value.param) == (400, "internal_field", "api_base")
    with pytest.raises(GatewayError) as cut:
        without_internal({"bootstrap_" + "x" * 1000: 1}, ClientFieldRules())
    assert len(cut.value.message) < 200
    assert without_internal({"model": "m"}, ClientFieldRules()) == {"model": "m"}


async def test_stripped_fields_reach_nobody(state: ApiState, generator: ScriptedGenerator) -> None:
    """With the rule to strip, a request goes on as if the fields were not there."""
    access = make_access(rules=Rules(client_fields=STRIP))
    body = CHAT | {"kv_transfer_params": {"remote_host": "10.0.0.1"}, "cache_salt": "theirs", "priority": -5}
    async with AppServer(build_app(replace(state, access=access))) as server:
        async with httpx.AsyncClient(base_url=server.url) as http:
            answer = await http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200
    (request,) = generator.requests
    assert (request.cache_salt, request.priority, dict(request.sampling.extra)) == (None, 1, {})


@pytest.mark.parametrize(("rules", "shown"), [(Rules(), False), (Rules(debug=True), True)])
async def test_how_it_was_made_is_told_by_rule(state: ApiState, rules: Rules, shown: bool) -> None:
    """A tenant with a key learns of plans and instances, and so of caches, only where its rules say so."""
    access = make_access(lambda connection: "acme", rules)
    async with AppServer(build_app(replace(state, access=access))) as server:
        async with httpx.AsyncClient(base_url=server.url, headers={"x-pdd-trace": "1"}) as http:
            answer = await http.post("/v1/chat/completions", json=CHAT)
    assert answer.status_code == 200
    assert [name in answer.headers for name in ("x-pdd-plan", "x-pdd-reason")] == [shown, shown]
    assert ("pdd" in answer.json()) is shown
