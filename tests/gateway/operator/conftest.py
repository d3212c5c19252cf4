"""A gateway before fakes, with the operator's page behind a real socket."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.app import Gateway
from gateway.redis.client import SharedRedis
from tests.fakes.server import AppServer
from tests.gateway.cli.conftest import long_model_dir
from tests.gateway.cli.fleet import Fleet, open_fleet

__all__ = ["long_model_dir"]

KEY = "operator-key-of-some-length"
COLD = {"p1": 0, "rld1": 0, "md1": 0}


@dataclass(frozen=True, slots=True)
class Desk:
    """An operator's client."""

    gateway: Gateway
    fleet: Fleet
    client: httpx.AsyncClient


@pytest.fixture
async def desk(
    long_model_dir: Path, tmp_path: Path, shared_redis: SharedRedis, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Desk]:
    """The gateway on this machine only, open to the operator without a key."""
    monkeypatch.delenv("REDIS_URL", raising=False)
    async with open_fleet(long_model_dir, tmp_path) as fleet, open_desk(fleet, shared_redis) as desk:
        yield desk


@pytest.fixture
async def locked_desk(
    long_model_dir: Path, tmp_path: Path, shared_redis: SharedRedis, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Desk]:
    """The gateway with the operator's key ``KEY``, which the client does not send."""
    monkeypatch.delenv("REDIS_URL", raising=False)
    monkeypatch.setenv("PDD_TEST_KEY", KEY)
    async with (
        open_fleet(long_model_dir, tmp_path) as fleet,
        open_desk(fleet, shared_redis, admin={"key_env": "PDD_TEST_KEY"}) as desk,
    ):
        yield desk


@asynccontextmanager
async def open_desk(fleet: Fleet, redis: SharedRedis, **changes: Any) -> AsyncIterator[Desk]:
    """Run a gateway without canaries, and a client of it."""
    async with (
        fleet.gateway(COLD, redis, canary_interval_s=0, **changes) as gateway,
        AppServer(gateway.app) as server,
        httpx.AsyncClient(base_url=server.url) as client,
    ):
        yield Desk(gateway, fleet, client)
