"""The adapter that backends/README.md shows is one: it is installed as written there, and a gateway serves with it."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.app import Gateway
from gateway.config.settings import parse_settings
from gateway.redis.client import SharedRedis
from gateway.text.model import load_model
from tests.fakes.engine import answer, send_piece
from tests.fakes.index import KnownIndex
from tests.fakes.server import AppServer
from tests.gateway.model_dir import model_dir
from tests.readme import read_document

__all__ = ["model_dir"]

WORDS = "This is not one of the engines that the gateway knows."
Send = Callable[[dict[str, Any]], Awaitable[None]]


def code_block(language: str, holding: str) -> str:
    """The README's only code block of a language that holds a text."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```", read_document("backends/README.md"), re.M | re.S)
    (found,) = [block for block in blocks if holding in block]
    return str(found)


class Acme(AppServer):
    """The engine that the example speaks to: after the first prompt that it is asked it says ``ids``."""

    def __init__(self, model: str, ids: list[int]) -> None:
        super().__init__(self._app)
        self._model = model
        self._ids = ids
        self.asked: list[dict[str, Any]] = []

    async def _app(self, scope: dict[str, Any], receive: Callable[[], Awaitable[Any]], send: Send) -> None:
        body = (await receive())["body"]
        match scope["path"]:
            case "/about":
                await answer(send, 200, {"model": self._model, "context": 4096, "running": 0, "waiting": 0, "full": 0})
            case "/tokens":
                self.asked.append(json.loads(body))
                await send({"type": "http.response.start", "status": 200, "headers": []})
                said = len(self.asked[-1]["ids"]) - len(self.asked[0]["ids"])
                for place, token in enumerate(self._ids[said:][: self.asked[-1]["limit"]], 1):
                    end = "stop" if token == self._ids[-1] else "length" if place == self.asked[-1]["limit"] else None
                    await send_piece(send, json.dumps({"id": token, "end": end}).encode() + b"\n")
                await send({"type": "http.response.body", "body": b""})
            case _:
                await answer(send, 404, b"")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """README's module and its entry point, as pip would leave them."""
    source = code_block("python", "class AcmeEngine")
    assert len(source.splitlines()) <= 60
    (tmp_path / "acme_pdd.py").write_text(source, encoding="utf-8")
    table = re.search(r'^\[project\.entry-points\."(.*)"\]\n(\w+) = "(.*)"', code_block("toml", "entry-points"), re.M)
    assert table is not None
    info = tmp_path / "acme_pdd-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-pdd\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(f"[{table[1]}]\n{table[2]} = {table[3]}\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.fixture
async def acme(model_dir: Path) -> AsyncIterator[Acme]:
    """The running engine."""
    model = await asyncio.to_thread(load_model, "tiny", model_dir)
    async with Acme("tiny", [*model.encoder.encode_now(WORDS), min(model.eos_token_ids)]) as server:
        yield server
    model.close()


@pytest.mark.usefixtures("installed")
async def test_the_example_serves(acme: Acme, model_dir: Path, shared_redis: SharedRedis) -> None:
    """A chat through the gateway is what the example's engine says, and the engine was asked in its own words."""
    engine = {"model": "tiny", "region": "a", "url": acme.url, "kind": "acme", "options": {"path": "/tokens"}}
    settings = parse_settings(
        {
            "models": [{"name": "tiny", "path": str(model_dir), "kv_bytes_per_token": 1}],
            "engines": [engine | {"id": role, "role": role} for role in ("P", "MD")],
            "canary_interval_s": 0,
        }
    )
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "temperature": 0}
    async with (
        await asyncio.to_thread(Gateway, settings, KnownIndex({}), shared_redis) as gateway,
        AppServer(gateway.app) as server,
        httpx.AsyncClient(base_url=server.url) as client,
    ):
        assert gateway.status.find_missing() == []
        reply = await client.post("/v1/chat/completions", json=body)
    assert reply.status_code == 200
    assert reply.json()["choices"][0]["message"]["content"] == WORDS
    assert acme.asked[0]["limit"] == 1
