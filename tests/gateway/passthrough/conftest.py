"""A gateway before fake engines and two fake upstreams."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.app import Gateway
from gateway.config.settings import parse_settings
from gateway.redis.client import SharedRedis
from tests.fakes.engine import FakeEngine, Receive, Send, answer
from tests.fakes.index import KnownIndex
from tests.fakes.server import AppServer
from tests.fakes.upstream import FakeUpstream
from tests.gateway.model_dir import model_dir

__all__ = ["model_dir"]


class WiderEngine(FakeEngine):
    """An engine that has more paths than its completions; ``passed`` are the bodies that came there."""

    def __init__(self, name: str, served_model: str) -> None:
        super().__init__(name, served_model=served_model)
        self.passed: list[bytes] = []

    async def _app(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["path"] not in ("/tokenize", "/v1/chat/completions", "/v1/responses", "/v1/messages"):
            await super()._app(scope, receive, send)
            return
        body = (await receive())["body"]
        if scope["path"] == "/tokenize" and b'"messages"' in body:
            # The gateway's own look at how engines read chats.
            await answer(send, 404, {})
            return
        self.passed.append(body)
        await answer(send, 200, {"tokens": [1, 2]}, {"content-type": "application/json"})


@dataclass(frozen=True, slots=True)
class Rig:
    """What runs. Both ``upstreams`` serve ``guest``; ``md`` serves the gateway's own model."""

    gateway: Gateway
    server: AppServer
    client: httpx.AsyncClient
    upstreams: list[FakeUpstream]
    md: WiderEngine

    def counted(self, name: str, **labels: str) -> float:
        """Value of one of the gateway's metrics."""
        return self.gateway.metrics.registry.get_sample_value(name, labels) or 0.0

    def judged(self, met: str) -> float:
        """Answers that kept their tenant's promises, or did not."""
        return self.counted("pdd_slo_requests_total", tenant="default", met=met)

    async def ask(self, path: str, **fields: Any) -> httpx.Response:
        """Post a JSON body for ``guest``."""
        return await self.client.post(path, json={"model": "guest"} | fields)


@pytest.fixture
async def rig(model_dir: Path, monkeypatch: pytest.MonkeyPatch, shared_redis: SharedRedis) -> AsyncIterator[Rig]:
    """Everything, up and asked once; the upstreams' watch rests from then on."""
    monkeypatch.setenv("UPSTREAM_KEY", "upstream-secret")
    async with (
        FakeEngine("p", served_model="tiny") as prefill,
        WiderEngine("md", served_model="tiny") as main,
        FakeUpstream("guest") as first,
        FakeUpstream("guest", "second", "tiny") as second,
    ):
        engine = {"model": "tiny", "region": "a"}
        settings = parse_settings(
            {
                "models": [
                    {"name": "tiny", "path": str(model_dir), "kv_bytes_per_token": 1, "media": True, "reader": "local"}
                ],
                "engines": [
                    engine | {"id": "p", "role": "P", "url": prefill.url},
                    engine | {"id": "md", "role": "MD", "url": main.url},
                ],
                "upstreams": [
                    {"id": "up1", "url": first.url, "api_key_env": "UPSTREAM_KEY", "max_running": 2},
                    {"id": "up2", "url": second.url, "max_running": 2, "paths": ["/v1/chat/completions"]},
                ],
                "health_interval_s": 3600,
                "canary_interval_s": 0,
            }
        )
        async with (
            await asyncio.to_thread(Gateway, settings, KnownIndex({}), shared_redis) as gateway,
            AppServer(gateway.app) as server,
            httpx.AsyncClient(base_url=server.url, timeout=10) as client,
        ):
            await gateway.readings.settled()
            main.passed.clear()  # how it reads chats was asked of it, and is no test's matter here
            yield Rig(gateway, server, client, [first, second], main)
