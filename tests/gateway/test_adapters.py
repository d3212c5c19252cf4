"""Two served names over one base model, behind a whole gateway: their KV is under different names everywhere."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.app import Gateway
from gateway.auth.secrets import Salts
from gateway.config.settings import parse_settings
from gateway.redis.client import SharedRedis
from tests.fakes.engine import FakeEngine
from tests.fakes.memory_index import MemoryIndex
from tests.fakes.server import AppServer
from tests.gateway.model_dir import model_dir

__all__ = ["model_dir"]

NAMES = ("base", "org/law")


def configure(model_dir: Path, engines: dict[tuple[str, str], FakeEngine], base: dict[str, Any]) -> dict[str, Any]:
    """A P and an MD for each name, in one region; both names have one directory and one name of KV."""
    model = {"path": str(model_dir), "kv_bytes_per_token": 1, "kv_name": "/models/base"}
    return {
        "models": [model | {"name": "base"} | base, model | {"name": "org/law"}],
        "engines": [
            {"id": engine.name, "role": role, "model": name, "region": "a", "url": engine.url}
            for (name, role), engine in engines.items()
        ],
        "canary_interval_s": 0,
    }


@pytest.mark.parametrize("base", [{}, {"adapter": False}], ids=["auto", "named"])
async def test_served_names_never_share_kv(model_dir: Path, shared_redis: SharedRedis, base: dict[str, Any]) -> None:
    """Every leg of a name has that name's salt, and what one name was asked is no hit for the other."""
    salts = Salts(None, frozenset(NAMES[1:] if base else NAMES))
    engines = {
        (name, role): FakeEngine(f"{role}-{number}", served_model=name)
        for number, name in enumerate(NAMES)
        for role in ("P", "MD")
    }
    for engine in engines.values():
        await engine.start()
    settings = parse_settings(configure(model_dir, engines, base))
    gateway = await asyncio.to_thread(Gateway, settings, MemoryIndex(), shared_redis, True)
    server = AppServer(gateway.app)
    async with gateway:
        await server.start()
        async with httpx.AsyncClient(base_url=server.url) as client:
            for name in NAMES:
                body = {"model": name, "prompt": list(range(3, 103)), "max_tokens": 4, "ignore_eos": True}
                answer = await client.post("/v1/completions", json=body)
                assert answer.status_code == 200, answer.text
        await server.stop()
        for (name, _), engine in engines.items():
            assert engine.calls
            assert {call.body.get("cache_salt") for call in engine.calls} == {salts.of_model(None, name)}
        assert salts.of_model(None, "base") != salts.of_model(None, "org/law")
        for name in NAMES:
            tokens = {
                asked: max(
                    hit.at_least_tokens
                    for hit in gateway.index.lookup(name, range(3, 103), salts.of_model(None, asked)).values()
                )
                for asked in NAMES
            }
            assert tokens[name] >= 96 and sum(tokens.values()) == tokens[name]
    for engine in engines.values():
        await engine.stop()
