"""``pdd trace``, end to end: switched on, requests served, lines exported, and a plan made of them."""

import asyncio
import json
from pathlib import Path

import httpx
import pytest

from gateway.config.rulebook import RULES
from gateway.redis.client import SharedRedis
from tests.fakes.server import AppServer
from tests.gateway.cli.fleet import MODEL, Fleet, pdd
from tests.valkey import open_documents

pytestmark = pytest.mark.slow
WORDS = "secretword " * 200


async def ask(client: httpx.AsyncClient) -> None:
    """Send a request whose prompt must be found nowhere."""
    body = {"model": MODEL, "prompt": WORDS, "max_tokens": 5, "prompt_cache_key": "secret talk"}
    answer = await client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text


async def test_traffic_becomes_a_plan(
    fleet: Fleet, shared_redis: SharedRedis, valkey_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nothing is kept before the rule says so; then each request is a line, and the lines are a trace to plan with."""
    monkeypatch.setenv("REDIS_URL", valkey_url)
    out = tmp_path / "site.jsonl"
    assert await pdd("trace", "export", "--out", out) == 1
    async with fleet.gateway({}, shared_redis) as gateway, AppServer(gateway.app) as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=20) as client:
            await ask(client)
            assert await pdd("trace", "record", "--wait") == 0
            for _ in range(3):
                await ask(client)
            assert await pdd("trace", "record", "--stop", "--wait") == 0
            await ask(client)
        await gateway.tracer.flush()
    assert await pdd("trace", "export", "--since", "1h", "--out", out) == 0
    text = await asyncio.to_thread(out.read_text, encoding="utf-8")
    assert "secret" not in text
    rows = [json.loads(line) for line in text.splitlines()]
    assert len(rows) == 3
    assert rows[0]["timestamp"] == 0
    assert len({row["hash_ids"][0] for row in rows}) == 1
    assert all(row["output_length"] == 5 and row["ttft_s"] > 0 for row in rows)
    assert await pdd("plan", "--traffic", out, "--rate", "2", "--quick") == 0
    async with open_documents(valkey_url) as store:
        document = await store.get(RULES, "default")
    assert document is not None
    assert json.loads(document.body) == {"trace": {"record": False}}


async def test_a_file_is_exported(fleet: Fleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where the settings name a file the lines are read from it, those of the asked time only."""
    kept = tmp_path / "kept.jsonl"
    row = {"input_length": 5, "output_length": 1, "hash_ids": ["a"], "tenant": "t", "model": "m", "plan": "direct"}
    await asyncio.to_thread(kept.write_text, "\n".join(json.dumps({**row, "timestamp": at}) for at in (0, 10**14)))
    config = await fleet.write(trace={"file": str(kept)})
    assert await pdd("trace", "export", "--config", config) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["timestamp"] == 0
    await asyncio.to_thread(kept.write_text, "{")
    assert await pdd("trace", "export", "--config", config) == 1
    await asyncio.to_thread(kept.unlink)
    assert await pdd("trace", "export", "--config", config) == 1
