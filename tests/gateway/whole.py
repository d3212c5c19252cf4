"""A whole gateway over fake engines, and a client of it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from gateway.app import Gateway
from gateway.config.settings import parse_settings
from gateway.redis.client import SharedRedis
from tests.fakes.engine import FakeEngine
from tests.fakes.memory_index import MemoryIndex
from tests.fakes.server import AppServer

MODEL = "tiny"


@dataclass(frozen=True, slots=True)
class Whole:
    """What a test has of it."""

    gateway: Gateway
    client: httpx.AsyncClient


def describe(model_dir: Path, engines: Mapping[str, FakeEngine], model: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with one model, and its engines by their roles, all in one region."""
    served = {"name": MODEL, "path": str(model_dir), "kv_bytes_per_token": 1, **model}
    return {
        "models": [served],
        "engines": [
            {"id": engine.name, "role": role, "model": MODEL, "region": "a", "url": engine.url}
            for role, engine in engines.items()
        ],
        "canary_interval_s": 0,
    }


@asynccontextmanager
async def open_whole(
    model_dir: Path,
    redis: SharedRedis,
    engines: Mapping[str, FakeEngine],
    model: Mapping[str, Any] | None = None,
    spell: Callable[[str], str] = str,
    **settings: Any,
) -> AsyncIterator[Whole]:
    """Run engines, by role, and a gateway until the block ends. ``model``: more settings of the one model. ``spell``
    changes engines' URLs.
    """
    async with AsyncExitStack() as stack:
        for engine in engines.values():
            await stack.enter_async_context(engine)
        described = describe(model_dir, engines, model or {})
        described["engines"] = [{**engine, "url": spell(engine["url"])} for engine in described["engines"]]
        asked = parse_settings({**described, **settings})
        gateway = await asyncio.to_thread(Gateway, asked, MemoryIndex(), redis, True)
        await stack.enter_async_context(gateway)
        server = await stack.enter_async_context(AppServer(gateway.app))
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=server.url))
        yield Whole(gateway, client)
