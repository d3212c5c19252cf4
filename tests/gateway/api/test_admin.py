"""The operator's pages and the door before them."""

from dataclasses import replace

import httpx
import pytest

from gateway.api.app import ApiState, build_admin_app, build_app
from gateway.auth.admin import FORWARDING_HEADERS, AdminAuth
from gateway.auth.failures import Failures
from tests.fakes.server import AppServer

KEY = b"an operator's own key"
PAGES = ("/metrics", "/admin/requests/known", "/admin/rules")
HEADER = {"authorization": f"Bearer {KEY.decode()}"}


@pytest.fixture
def not_ready(state: ApiState) -> ApiState:
    """A gateway with something to hide."""
    return replace(state, pages=replace(state.pages, find_missing=lambda: ["md-1 at http://md-1"]))


async def test_shut_door(not_ready: ApiState) -> None:
    """Without a way in the pages are not there, and readiness is a yes or no."""
    async with AppServer(build_app(replace(not_ready, admin_auth=AdminAuth()))) as server:
        async with httpx.AsyncClient(base_url=server.url, headers=HEADER) as http:
            for page in PAGES:
                answer = await http.get(page)
                assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
            answer = await http.get("/ready")
            assert (answer.status_code, answer.json()) == (503, {"ready": False})
            assert (await http.get("/health")).json() == {"status": "ok"}


@pytest.mark.parametrize("name", FORWARDING_HEADERS)
async def test_what_a_proxy_hands_on_is_never_local(not_ready: ApiState, name: str) -> None:
    """Where the pages are this machine's own, a proxy on it lets nobody see them; a door that is open to all stays."""
    for is_local in (True, False):
        auth = AdminAuth(is_open=True, is_local=is_local)
        async with AppServer(build_app(replace(not_ready, admin_auth=auth))) as server:
            async with httpx.AsyncClient(base_url=server.url) as http:
                for page in PAGES:
                    assert (await http.get(page)).status_code == 200
                    forwarded = await http.get(page, headers={name: "192.0.2.1"})
                    assert forwarded.status_code == (401 if is_local else 200)


async def test_door_with_a_key(not_ready: ApiState) -> None:
    """With a key the pages, and what is missing, are told to those who have it."""
    async with AppServer(build_app(replace(not_ready, admin_auth=AdminAuth(key=KEY)))) as server:
        async with httpx.AsyncClient(base_url=server.url) as http:
            for page in PAGES:
                for headers in ({}, {"authorization": "Bearer other"}, {"authorization": KEY.decode()}):
                    answer = await http.get(page, headers=headers)
                    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
                assert (await http.get(page, headers=HEADER)).status_code == 200
            assert (await http.get("/ready")).json() == {"ready": False}
            assert (await http.get("/ready", headers=HEADER)).json()["missing"] == ["md-1 at http://md-1"]


async def test_what_is_degraded_is_told_to_the_operator(state: ApiState) -> None:
    """What is amiss though requests are served leaves the gateway ready, and only those with the key hear of it."""
    line = "demo: KV over a->b is not used"
    amiss = replace(state, pages=replace(state.pages, find_degraded=lambda: [line]), admin_auth=AdminAuth(key=KEY))
    async with AppServer(build_app(amiss)) as server, httpx.AsyncClient(base_url=server.url) as http:
        assert (await http.get("/ready")).json() == {"ready": True}
        answer = await http.get("/ready", headers=HEADER)
        assert (answer.status_code, answer.json()) == (200, {"ready": True, "missing": [], "degraded": [line]})


async def test_own_listener(not_ready: ApiState) -> None:
    """The operator's listener has the pages and no API."""
    async with AppServer(build_admin_app(not_ready.pages, AdminAuth(is_open=True))) as server:
        async with httpx.AsyncClient(base_url=server.url) as http:
            for page in PAGES:
                assert (await http.get(page)).status_code == 200
            assert (await http.get("/ready")).json()["missing"] == ["md-1 at http://md-1"]
            assert (await http.get("/v1/models")).status_code == 404


async def test_trying_keys(state: ApiState) -> None:
    """An address that tries keys is told to wait; the right key is never held up."""
    admin_auth = AdminAuth(key=KEY, failures=Failures(2, lambda: 0.0))
    async with AppServer(build_app(replace(state, admin_auth=admin_auth))) as server:
        async with httpx.AsyncClient(base_url=server.url) as http:
            statuses = [(await http.get("/metrics")).status_code for _ in range(3)]
            assert statuses == [401, 401, 429]
            assert (await http.get("/metrics", headers=HEADER)).status_code == 200


def test_key_is_not_shown() -> None:
    """The key is in no representation of the admin_auth."""
    assert KEY.decode() not in repr(AdminAuth(key=KEY))
