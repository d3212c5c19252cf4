"""What the edge does by its settings, behind a whole gateway: browsers, packed bodies, addresses, the access log."""

import asyncio
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from gateway.config.fleet_settings import BadSettings
from gateway.config.settings import parse_settings
from gateway.redis.client import SharedRedis
from gateway.version import VERSION
from tests.fakes.engine import FakeEngine
from tests.gateway.model_dir import model_dir
from tests.gateway.whole import MODEL, describe, open_whole

__all__ = ["model_dir"]

ORIGIN = "https://chat.example"
ASKED = {
    "origin": ORIGIN,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization, content-type, x-stainless-os",
}
BODY = {"model": MODEL, "prompt": list(range(3, 40)), "max_tokens": 3, "ignore_eos": True}


def make_engines() -> dict[str, FakeEngine]:
    """Return a P and an MD."""
    return {role: FakeEngine(role, served_model=MODEL) for role in ("P", "MD")}


@pytest.fixture
def keyed(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Settings with which keys are asked for."""
    monkeypatch.setenv("PDD_TEST_SECRET", "0123456789abcdef0123456789abcdef")
    return {"auth": {"secret_env": "PDD_TEST_SECRET"}}


@pytest.mark.parametrize("origins", [[ORIGIN], ["*"], ["https://other.example", ORIGIN]])
async def test_pages_of_allowed_origins_may_ask(
    model_dir: Path, shared_redis: SharedRedis, keyed: dict[str, Any], origins: list[str]
) -> None:
    """API-119: a preflight needs no key, and answers, streams and errors carry the headers; the operator's do not."""
    async with open_whole(model_dir, shared_redis, make_engines(), cors_origins=origins, **keyed) as whole:
        answer = await whole.client.options("/v1/chat/completions", headers=ASKED)
        assert (answer.status_code, answer.content) == (204, b"")
        assert answer.headers["access-control-allow-origin"] == ORIGIN
        assert answer.headers["access-control-allow-headers"] == ASKED["access-control-request-headers"]
        assert "POST" in answer.headers["access-control-allow-methods"]
        for path, status in (("/v1/completions", 401), ("/v1/nothing", 404)):
            answer = await whole.client.post(path, json=BODY, headers={"origin": ORIGIN})
            assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (status, ORIGIN)
        answer = await whole.client.get("/admin/requests", headers={"origin": ORIGIN})
        assert "access-control-allow-origin" not in answer.headers


async def test_answers_to_pages(model_dir: Path, shared_redis: SharedRedis) -> None:
    """A whole answer and a stream are for pages too, and their request's id can be read there."""
    async with open_whole(model_dir, shared_redis, make_engines(), cors_origins=[ORIGIN]) as whole:
        for stream in (False, True):
            answer = await whole.client.post(
                "/v1/completions", json={**BODY, "stream": stream}, headers={"origin": ORIGIN}
            )
            assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, ORIGIN)
            assert "x-request-id" in answer.headers["access-control-expose-headers"]
            assert answer.headers["vary"] == "Origin"


@pytest.mark.parametrize("settings", [{}, {"cors_origins": ["https://other.example"]}])
async def test_other_pages_may_not(model_dir: Path, shared_redis: SharedRedis, settings: dict[str, Any]) -> None:
    """Without the setting, and for other origins, nothing is allowed, preflight or not."""
    async with open_whole(model_dir, shared_redis, make_engines(), **settings) as whole:
        answer = await whole.client.options("/v1/completions", headers=ASKED)
        assert answer.status_code >= 400 and "access-control-allow-origin" not in answer.headers
        answer = await whole.client.post("/v1/completions", json=BODY, headers={"origin": ORIGIN})
        assert answer.status_code == 200 and "access-control-allow-origin" not in answer.headers


async def test_a_packed_body_is_read(model_dir: Path, shared_redis: SharedRedis) -> None:
    """A body that says how it is packed is answered as the plain one."""
    async with open_whole(model_dir, shared_redis, make_engines()) as whole:
        headers = {"content-encoding": "gzip", "content-type": "application/json"}
        packed = gzip.compress(json.dumps(BODY).encode())
        answer = await whole.client.post("/v1/completions", content=packed, headers=headers)
        assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("spelling", ["{}/v1", "{}/v1/", "{}/", "UPPER", "CREDENTIALS"])
async def test_addresses_of_engines(model_dir: Path, shared_redis: SharedRedis, spelling: str) -> None:
    """OPS-102: an engine's URL may end in /v1 or a slash; credentials go out as Basic auth and are shown nowhere."""
    engines = make_engines()

    def spell(url: str) -> str:
        if spelling == "UPPER":
            return url.replace("http:", "HTTP:")
        return url.replace("//", "//me:p%40ss@") + "/v1" if spelling == "CREDENTIALS" else spelling.format(url)

    async with open_whole(model_dir, shared_redis, engines, spell=spell) as whole:
        assert (await whole.client.post("/v1/completions", json=BODY)).status_code == 200
        sent = engines["P"].calls[-1].headers.get("authorization")
        assert sent == ("Basic bWU6cEBzcw==" if spelling == "CREDENTIALS" else None)
        lost = whole.gateway.pools["MD"]
        lost.reachable = False
        told = json.dumps((await whole.client.get("/ready")).json())
        assert f"127.0.0.1:{engines['MD'].port}" in told
        assert "p%40ss" not in told + repr(lost.spec)


@pytest.mark.parametrize("url", ["http://e:1/v1?key=x", "http://e:1#x", "ftp://e:1", "http://"])
def test_an_address_that_cannot_be_used(model_dir: Path, url: str) -> None:
    """A query, a fragment or another scheme is refused at the start, by the key's name."""
    settings = describe(model_dir, {}, {})
    settings["engines"] = [{"id": "a", "role": "MD", "model": MODEL, "region": "a", "url": url}]
    with pytest.raises(BadSettings, match=r"engines\[0\]\.url|engines\[\.\.\.\]\.url"):
        parse_settings(settings)


async def test_hints_and_the_version(model_dir: Path, shared_redis: SharedRedis) -> None:
    """A path that lacks /v1, has it twice or ends in a slash is told what is there; /version tells the release."""
    async with open_whole(model_dir, shared_redis, make_engines()) as whole:
        for path in ("/chat/completions", "/v1/v1/chat/completions", "/v1/chat/completions/"):
            answer = await whole.client.post(path, json={})
            assert answer.status_code == 404
            assert "/v1/chat/completions is there" in answer.json()["error"]["message"]
        assert "is there" not in (await whole.client.get("/v1/nothing")).json()["error"]["message"]
        assert (await whole.client.get("/version")).json() == {"version": VERSION}


async def test_the_access_log(model_dir: Path, shared_redis: SharedRedis, tmp_path: Path) -> None:
    """Each request is one JSON line, once it is over, with nothing that the client said."""
    target = tmp_path / "access.log"
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "a secret"}], "max_tokens": 3, "stream": True}
    async with open_whole(model_dir, shared_redis, make_engines(), access_log=str(target)) as whole:
        answer = await whole.client.post("/v1/chat/completions?key=secret", json=chat)
        assert answer.status_code == 200
        await whole.client.post("/v1/completions", json={"model": "no"})
    text = await asyncio.to_thread(target.read_text)
    lines = [json.loads(line) for line in text.splitlines()]
    assert [(line["method"], line["path"], line["status"]) for line in lines] == [
        ("POST", "/v1/chat/completions", 200),
        ("POST", "/v1/completions", 400),
    ]
    assert lines[0]["request_id"] == answer.headers["x-request-id"] and lines[0]["tenant"] == "default"
    assert lines[0]["complete"] and lines[0]["bytes"] == len(answer.content)
    assert "secret" not in text


async def test_recent_requests_are_listed(model_dir: Path, shared_redis: SharedRedis) -> None:
    """GET /admin/requests tells the newest first, as many as are asked for, and refuses what is no number."""
    async with open_whole(model_dir, shared_redis, make_engines()) as whole:
        ids = [(await whole.client.post("/v1/completions", json=BODY)).headers["x-request-id"] for _ in range(3)]
        listed = (await whole.client.get("/admin/requests", params={"limit": 2})).json()["requests"]
        assert [one["request_id"] for one in listed] == ids[:0:-1]
        assert "events" not in listed[0]
        for limit in ("0", "x", "-1", "1001", "9" * 30):
            assert (await whole.client.get("/admin/requests", params={"limit": limit})).status_code == 400
