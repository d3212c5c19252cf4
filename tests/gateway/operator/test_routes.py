"""The operator's page over HTTP: its files, what it asks and changes, and who may."""

import base64
import re
from typing import Any

import pytest

from gateway.operator.assets import read_assets
from tests.gateway.cli.fleet import MODEL
from tests.gateway.operator.conftest import KEY, Desk

ASSETS = read_assets()
LONG = {"model": MODEL, "prompt": [index % 500 for index in range(4100)], "max_tokens": 2000}


async def test_the_page_is_served_whole_and_asks_nobody_else(desk: Desk) -> None:
    """Every file is there with a strict policy, unchanged ones are not sent again, and none names another host."""
    page = await desk.client.get("/ui")
    assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "unsafe-inline" not in page.headers["content-security-policy"]
    assert (await desk.client.get("/ui", headers={"if-none-match": page.headers["etag"]})).status_code == 304
    for name, asset in ASSETS.items():
        assert (await desk.client.get(f"/ui/{name}")).content == asset.body
        assert set(re.findall(rb"https?://[a-z0-9.]+", asset.body)) <= {b"http://www.w3.org"}, name
    assert sum(len(asset.body) for asset in ASSETS.values()) < 200_000
    assert (await desk.client.get("/ui/nothing.js")).status_code == 404
    assert (await desk.client.get("/ui/..%2fassets.py")).status_code == 404


async def test_a_decision_is_explained(desk: Desk) -> None:
    """A pasted request is decided and not carried out; what cannot be decided says why."""
    told = (await desk.client.post("/admin/explain", json={"request": LONG})).json()
    assert (told["plan"]["kind"], told["reason"]) == ("relay", "wan_slow")
    assert desk.fleet.calls == 0
    bad = await desk.client.post("/admin/explain", json={"request": {"model": "other", "prompt": "x"}})
    assert (bad.status_code, bad.json()["error"]["code"]) == (404, "model_not_found")
    assert (await desk.client.post("/admin/explain", json={"request": "x"})).status_code == 400
    assert (await desk.client.post("/admin/explain", json={"request": LONG, "tenant": "x"})).status_code == 400


async def is_draining(desk: Desk, name: str) -> bool:
    """Say whether the gateway gives an engine no new requests, once it has looked at the documents."""
    await desk.gateway.live.look()
    return desk.gateway.pools[name].draining


async def test_an_engine_is_drained_and_put_back(desk: Desk) -> None:
    """The change goes through the shared document, is audited, and an unknown engine changes nothing."""
    done = (await desk.client.post("/admin/instances/md1/drain", json={})).json()
    assert done["version"] == 1 and await is_draining(desk, "md1")
    async with desk.gateway.live.store.redis.limit():
        newest = (await desk.gateway.live.store.audit(1))[0]
    assert (newest.author, newest.kind) == ("operator page", "topology")
    state = (await desk.client.get("/admin/state")).json()["sections"]
    assert state["instances"]["md1"]["why"] == "draining"
    await desk.client.post("/admin/instances/md1/undrain", json={})
    assert not await is_draining(desk, "md1")
    assert (await desk.client.post("/admin/instances/nosuch/drain", json={})).status_code == 404


async def test_rules_are_checked_pushed_and_taken_back(desk: Desk) -> None:
    """Only valid rules at the expected version are written; the history has all of them."""
    path = "/admin/rules/documents/default"
    bad = await desk.client.post(f"{path}/check", json={"body": {"handoff": {"mode": "often"}}})
    assert bad.status_code == 400 and "handoff.mode" in bad.json()["error"]["message"]
    assert (await desk.client.post(path, json={"body": {"nope": 1}})).status_code == 400
    first = await desk.client.post(path, json={"body": {"pipelines": ["direct"]}, "expect_version": 0})
    assert first.json()["version"] == 1
    late = await desk.client.post(path, json={"body": {}, "expect_version": 0})
    assert (late.status_code, late.json()["error"]["code"]) == (409, "version_conflict")
    await desk.gateway.live.look()
    assert desk.gateway.rulebook.of("default").pipelines == ("direct",)
    assert (await desk.client.post(path, json={"body": None, "expect_version": 1})).json()["version"] == 2
    history = (await desk.client.get(f"{path}/history")).json()["versions"]
    assert [(one["version"], one["deleted"]) for one in history] == [(2, True), (1, False)]
    assert (await desk.client.get("/admin/rules/documents")).json()["documents"] == []
    assert "handoff" in (await desk.client.get("/admin/rules/schema")).text


async def test_rules_are_rehearsed_on_recent_requests(desk: Desk) -> None:
    """The check tells whose recent plans would be others under the new rules, and the decision stays readable."""
    answer = await desk.client.post("/v1/completions", json=LONG | {"max_tokens": 4})
    request_id = answer.headers["x-request-id"]
    decision = (await desk.client.get(f"/admin/requests/{request_id}/decision")).json()
    path = "/admin/rules/documents/default/check"
    told = (await desk.client.post(path, json={"body": {"pipelines": ["direct"]}})).json()
    assert told["looked_at"] == 1
    assert [(one["request_id"], one["before"].split()[0], one["after"].split()[0]) for one in told["changed"]] == [
        (request_id, decision["plan"]["kind"], "direct")
    ]
    assert (await desk.client.get("/admin/requests/nosuch/decision")).status_code == 404


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "text/plain"},
        {"content-type": "application/json", "sec-fetch-site": "cross-site"},
        {"content-type": "application/json", "host": "rebound.example:8000"},
    ],
    ids=["simple", "cross-site", "rebound"],
)
async def test_other_sites_cannot_make_a_browser_change_anything(desk: Desk, headers: dict[str, str]) -> None:
    """A form, a script of another site, or a name that leads here by trick, is refused."""
    reply = await desk.client.post("/admin/instances/md1/drain", content=b"{}", headers=headers)
    assert reply.status_code in (403, 415)
    assert (await desk.client.get("/admin/rules/documents")).json()["documents"] == []


async def test_a_plan_is_asked_for_where_plans_are_shown(desk: Desk) -> None:
    """``x-pdd-ask`` narrows the rules for one request; what is no plan is refused by name."""
    asked = LONG | {"max_tokens": 4}
    naive = await desk.client.post("/v1/completions", json=asked, headers={"x-pdd-ask": "naive"})
    assert naive.headers["x-pdd-plan"] == "direct"
    wrong = await desk.client.post("/v1/completions", json=asked, headers={"x-pdd-ask": "fast"})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "x-pdd-ask")


def browser_login(key: str) -> dict[str, str]:
    """What a browser sends after it has asked for a password."""
    return {"authorization": "Basic " + base64.b64encode(f"operator:{key}".encode()).decode()}


async def test_the_page_wants_the_operators_key(locked_desk: Desk) -> None:
    """With a key nothing of the page is shown without it; browsers may give it as password."""
    client = locked_desk.client
    calls: list[tuple[str, str, Any]] = [
        ("GET", "/ui", None),
        ("GET", "/ui/app.js", None),
        ("GET", "/admin/events", None),
        ("GET", "/admin/state", None),
        ("GET", "/admin/rules/documents", None),
        ("POST", "/admin/instances/md1/drain", {}),
        ("POST", "/admin/explain", {"request": LONG}),
    ]
    for method, path, body in calls:
        reply = await client.request(method, path, json=body)
        assert reply.status_code == 401 and "Basic" in reply.headers["www-authenticate"], path
        assert (await client.request(method, path, json=body, headers=browser_login("wrong"))).status_code == 401
    assert (await client.get("/ui", headers=browser_login(KEY))).status_code == 200
    assert (await client.get("/admin/state", headers={"authorization": f"Bearer {KEY}"})).status_code == 200
    assert not locked_desk.gateway.pools["md1"].draining
