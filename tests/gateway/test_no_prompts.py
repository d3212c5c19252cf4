"""Nothing of what clients send is in logs, metrics, timelines or Redis: a marker is sent every way and looked for."""

import asyncio
import itertools
import json
import logging
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from gateway.app import Gateway
from gateway.auth.keys import KeyRecord, hash_key, make_key
from gateway.auth.tenants import KEY_KIND, TENANT_KIND, TenantRecord
from gateway.config.document_store import DocumentStore
from gateway.config.settings import parse_settings
from gateway.redis.client import SharedRedis
from gateway.tenancy import open_index
from tests.fakes.engine import FakeEngine
from tests.fakes.gates import HoldGate
from tests.fakes.script import Cut, ErrorEvent, Refuse, Script
from tests.gateway.http.edge_server import EdgeServer
from tests.gateway.index.publisher import Publisher, run_publisher, stored
from tests.gateway.model_dir import model_dir
from tests.integration.regions import eventually
from tests.valkey import open_documents, run_valkey

__all__ = ["model_dir"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]

MARKER = "zqMarkerqz"
SECRET = "0123456789abcdef0123"
QUOTE = {"error": {"message": f"cannot read {MARKER}", "type": "x", "param": None, "code": 500}}
TEXT = f"{MARKER} says {MARKER} and {MARKER} again. " * 8
IDS_AT_ONCE = 5
"""So many of the marker's ids in a row are the marker."""


@dataclass(slots=True)
class Rig:
    """A gateway with keys over a real Valkey and fake engines."""

    gateway: Gateway
    http: httpx.AsyncClient
    engines: dict[str, FakeEngine]
    publisher: Publisher
    store: DocumentStore
    marker_ids: list[int]
    asked: list[str] = field(default_factory=list)

    @property
    def cached_tokens(self) -> list[int]:
        """A prompt of the marker that md has cached."""
        return (self.marker_ids * 16)[:64]

    async def is_indexed(self) -> bool:
        """Whether the index has md's blocks."""
        hit = self.gateway.index.lookup("tiny", [*self.cached_tokens, 1]).get("md")
        return hit is not None and hit.tokens == 64

    async def ask(self, path: str = "/v1/chat/completions", **changes: Any) -> httpx.Response:
        """Send a request that is full of the marker."""
        call = {"id": "c1", "type": "function", "function": {"name": MARKER, "arguments": f'{{"a": "{MARKER}"}}'}}
        body: dict[str, Any] = {
            "model": "tiny",
            "messages": [
                {"role": "system", "content": TEXT},
                {"role": "assistant", "content": MARKER, "tool_calls": [call]},
                {"role": "user", "content": [{"type": "text", "text": MARKER}]},
            ],
            "stop": [MARKER],
            "bad_words": [MARKER],
            "user": MARKER,
            "metadata": {"note": MARKER},
            "prompt_cache_key": MARKER,
            "max_tokens": 8,
        }
        if path == "/v1/completions":
            del body["messages"]
            body["prompt"] = TEXT
        answer = await self.http.post(path, json=body | changes, headers={"x-note": MARKER})
        self.asked.append(answer.headers["x-request-id"])
        return answer


@pytest.fixture
async def rig(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    """Everything, ready."""
    monkeypatch.setenv("PDD_TEST_SECRET", SECRET)
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(run_valkey())
        publisher = await stack.enter_async_context(run_publisher())
        engines = {
            name: await stack.enter_async_context(FakeEngine(name, served_model="tiny")) for name in ("p", "rld", "md")
        }
        roles = {"p": "P", "rld": "RLD", "md": "MD"}
        events = {"kv_events": publisher.source.endpoint, "kv_replay": publisher.source.replay_endpoint}
        settings = parse_settings(
            {
                "models": [{"name": "tiny", "path": str(model_dir), "kv_bytes_per_token": 1}],
                "engines": [
                    {"id": name, "role": roles[name], "model": "tiny", "region": "a", "url": engine.url}
                    | (events if name == "md" else {})
                    for name, engine in engines.items()
                ],
                "auth": {"secret_env": "PDD_TEST_SECRET"},
                "rules": {"trace": {"record": True}},
                "canary_interval_s": 0,
            }
        )
        store = await stack.enter_async_context(open_documents(url))
        key = make_key()
        await store.put(TENANT_KIND, "acme", TenantRecord(), author="test")
        record = KeyRecord(tenant="acme", hash=hash_key(SECRET.encode(), key), created_s=0)
        await store.put(KEY_KIND, key.id, record, author="test")
        shared = await stack.enter_async_context(SharedRedis(url))
        gateway = await asyncio.to_thread(Gateway, settings, open_index(settings, shared), shared)
        await stack.enter_async_context(gateway)
        server = await stack.enter_async_context(EdgeServer(gateway.app))
        headers = {"authorization": f"Bearer {key}"}
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=server.url, headers=headers, timeout=20))
        async with asyncio.timeout(20):
            while gateway.status.find_missing():
                await engines["md"].questioned(engines["md"].questions + 1)
        marker_ids = gateway.served["tiny"].encoder.encode_now(f"{MARKER} says {MARKER}")
        yield Rig(gateway, http, engines, publisher, store, marker_ids)


async def send_every_way(rig: Rig) -> list[httpx.Response]:
    """Let requests succeed and fail in every way; return the gateway's own errors."""
    await rig.publisher.publish(stored([11, 12, 13, 14], rig.cached_tokens))
    for path in ("/v1/chat/completions", "/v1/completions"):
        for stream in (False, True):
            assert (await rig.ask(path, stream=stream)).status_code == 200
    faults: list[Script] = [
        Script(fault=Refuse(500, QUOTE)),
        Script(fault=Refuse(400, QUOTE)),
        Script(fault=Refuse(503, QUOTE)),
        Script(fault=Cut(2)),
        Script(fault=ErrorEvent(2, QUOTE["error"])),
    ]
    for script in faults:
        for engine in rig.engines.values():
            engine.scripts.extend([script] * 3)
        await rig.ask(stream=True)
        for engine in rig.engines.values():
            engine.scripts.clear()
        for instance in rig.gateway.pools.instances:
            rig.gateway.pools.report_success(instance)
    gate = HoldGate()
    for engine in rig.engines.values():
        engine.scripts.append(Script(holds={1: gate}))
    left_early = {"model": "tiny", "prompt": TEXT, "stream": True}
    async with rig.http.stream("POST", "/v1/completions", json=left_early) as left:
        await anext(left.aiter_raw())
    gate.open()
    bad: list[dict[str, Any]] = [
        {"temperature": MARKER},
        {"messages": MARKER},
        {"messages": [{"role": 1, "content": MARKER}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": f"http://{MARKER}"}}]}]},
        {"tools": [{"type": "function", "function": {"name": MARKER, "parameters": MARKER}}], "tool_choice": MARKER},
        {"logit_bias": {MARKER: 1}},
        {"stop": [MARKER] * 100},
        {"max_tokens": 10**9},
        {"chat_template_kwargs": MARKER},
    ]
    refused = [await rig.ask(**change) for change in bad]
    raw = f'{{"model": "tiny", "messages": "{MARKER}'.encode()
    refused += [await rig.http.post("/v1/chat/completions", content=raw + tail) for tail in (b"", b'\xff"}', b'"} x')]
    refused += [
        await rig.http.post("/v1/chat/completions", json={}, headers={"authorization": f"Bearer {MARKER}"}),
        await rig.http.get(f"/{MARKER}"),
        await rig.http.get("/v1/models", headers={"authorization": "Basic eA==", "x-api-key": MARKER}),
    ]
    assert {answer.status_code for answer in refused} <= {400, 401, 404}
    assert (await rig.ask(model=MARKER)).status_code == 404
    return refused


def spellings(ids: list[int]) -> list[bytes]:
    """The marker as text and as ids, in all the ways in which somebody could have written it down."""
    found = [MARKER.encode(), MARKER.lower().encode()]
    for start in range(len(ids) - IDS_AT_ONCE + 1):
        some = ids[start : start + IDS_AT_ONCE]
        found += [separator.join(map(str, some)).encode() for separator in (",", ", ", " ")]
        found += [msgspec.msgpack.encode(some)[1:], array("I", some).tobytes(), array("Q", some).tobytes()]
    return found


def to_text(value: bytes | str) -> str:
    """Return what Redis says as text."""
    return value if isinstance(value, str) else value.decode()


async def read_redis(store: DocumentStore) -> bytes:
    """Every key and value."""
    client, pieces = store.redis.commands, []
    async for key in client.scan_iter():
        kind = to_text(await client.type(key))
        reads = {
            "string": lambda key=key: client.get(key),
            "hash": lambda key=key: client.hgetall(key),
            "set": lambda key=key: client.smembers(key),
            "zset": lambda key=key: client.zrange(key, 0, -1),
            "list": lambda key=key: client.lrange(key, 0, -1),
            "stream": lambda key=key: client.xrange(key),
        }
        read: Callable[[], Awaitable[Any]] = reads[kind]
        pieces += [key, await read()]
    return b"\n".join(flatten(pieces))


def flatten(value: Any) -> list[bytes]:
    """All strings in a nested value."""
    if isinstance(value, bytes):
        return [value]
    if isinstance(value, str):
        return [value.encode()]
    if isinstance(value, dict):
        return list(itertools.chain.from_iterable(flatten(part) for pair in value.items() for part in pair))
    if isinstance(value, list | tuple | set):
        return list(itertools.chain.from_iterable(map(flatten, value)))
    return [repr(value).encode()]


async def test_marker_is_nowhere(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    """After requests that went well and wrong in every way, the marker is in no log at debug level, metric, timeline,
    error of the gateway's or Redis value."""
    with caplog.at_level(logging.DEBUG):
        refused = await send_every_way(rig)
        for engine in rig.engines.values():
            await engine.idle()
        assert await rig.gateway.ledger.exchange()
        assert await eventually(rig.is_indexed, 10)
    stored_bytes = await read_redis(rig.store)
    assert b"acme" in stored_bytes
    timelines = [timeline.as_dict() for name in rig.asked for timeline in rig.gateway.timelines.find(name)]
    assert len(timelines) >= 9
    # What the test's own client writes is no log of the gateway's.
    lines = [f"{record.getMessage()} {record.exc_text}" for record in caplog.records]
    places = {
        "log": "\n".join(line for line in lines if str(rig.http.base_url) not in line).encode(),
        "metrics": rig.gateway.metrics.exposition(),
        "timelines": json.dumps(timelines).encode(),
        "redis": stored_bytes,
        "errors": b"\n".join(answer.content for answer in refused),
    }
    wanted = spellings(rig.marker_ids)
    for place, text in places.items():
        assert not [spelling for spelling in wanted if spelling in text], place
