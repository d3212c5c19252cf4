"""``pdd index``: what is known of each cache, from events, from routing, and after the fact."""

import asyncio
import json
from typing import Any

import pytest

from gateway.app import Gateway
from gateway.auth.tenants import TENANT_KIND
from gateway.cli.index import as_request, look_up
from gateway.cli.reading import CannotInspect, Observer
from gateway.config.document_store import Document
from gateway.config.settings import parse_settings
from gateway.index.hashing import chain_seed, hash_blocks
from gateway.index.store import ModelStore, StoreLimits
from gateway.index.types import CacheSpec
from gateway.redis.client import SharedRedis
from gateway.tenancy import open_index
from tests.gateway.cli.fleet import MODEL, Fleet, pdd
from tests.gateway.index.publisher import run_publisher, stored
from tests.valkey import open_documents, run_valkey

PROMPT = [index % 500 for index in range(200)]


def test_a_prompt_is_a_text_or_a_request() -> None:
    """A request body is taken as it is; all else is a prompt's text, JSON that is no request included."""
    assert as_request(b'{"prompt": [1, 2]}') == {"prompt": [1, 2]}
    assert as_request(b'{"a": 1}') == {"prompt": '{"a": 1}', "max_tokens": 1}
    assert as_request("Grüße".encode()) == {"prompt": "Grüße", "max_tokens": 1}
    with pytest.raises(CannotInspect, match="UTF-8"):
        as_request(b"\xff\xfe")


async def test_engines_are_listened_to(fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    """Without Redis the engines' replays are looked into; an engine that is away is shown as not reachable."""
    await fleet.engines["rld1"].stop()
    async with run_publisher() as publisher:
        await publisher.publish(stored(range(1, 11), PROMPT[:160]), lost=True)
        engines = fleet.settings()["engines"]
        engines[2] |= {"kv_events": publisher.source.endpoint, "kv_replay": publisher.source.replay_endpoint}
        config = await fleet.write(engines=engines)
        prompt = await fleet.put("prompt.json", json.dumps({"prompt": PROMPT, "max_tokens": 1}).encode())
        assert await pdd("index", "lookup", "--config", config, "--model", MODEL, "--prompt", prompt, "--json") == 0
        found = json.loads(capsys.readouterr().out)
        assert await pdd("index", "stats", "--config", config) == 0
    assert found["prompt_tokens"] == 200
    assert {name: hit["tokens"] for name, hit in found["instances"].items()} == {
        "md1": 160,
        "p1": 0,
        f"store:b:{MODEL}": 0,
    }
    rows = {cells[1]: cells[3:-1:2] for cells in map(str.split, capsys.readouterr().out.splitlines()) if len(cells) > 5}
    assert rows["md1"][:4] == [MODEL, "yes", "no", "10"]
    assert rows["rld1"][0] == "not"


async def test_a_tenants_prompt_is_looked_up_under_its_salt(
    fleet: Fleet, shared_redis: SharedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is cached under a tenant's salt is found for that tenant only, and the salt is not told."""
    monkeypatch.setenv("PDD_SECRET", "0123456789abcdef0123")
    settings = parse_settings(fleet.settings(auth={"secret_env": "PDD_SECRET"}))
    body = json.dumps({"prompt": PROMPT, "max_tokens": 1}).encode()
    index = open_index(settings, shared_redis)
    gateway = await asyncio.to_thread(Gateway, settings, index, shared_redis, True)
    async with gateway.observing():
        assert gateway.tenancy.book is not None
        gateway.tenancy.book.apply([Document(TENANT_KIND, name, 1, 1, 0, "", "{}") for name in ("acme", "other")])
        salt = gateway.tenancy.access.salts.of("acme")
        gateway.index.note_routed("md1", MODEL, PROMPT, salt)
        seen = Observer(gateway, index)
        found = {name: await look_up(seen, MODEL, body, name) for name in ("acme", "other", "default")}
    assert {name: one["instances"]["md1"]["tokens"] for name, one in found.items()} == {
        "acme": 192,
        "other": 0,
        "default": 0,
    }
    assert str(salt) not in json.dumps(found)


async def share(url: str, tokens: int) -> None:
    """Note in Redis, as a gateway does, that MD was sent a prompt."""
    spec = CacheSpec("md1", MODEL, 16, boot_id="1790000000.25")
    async with SharedRedis(url) as shared:
        store = ModelStore(shared.client("index", 5.0), "pdd", MODEL, StoreLimits())
        await store.note([(spec, 0, hash_blocks(PROMPT[:tokens], chain_seed(MODEL, None, None)))], 600.0)


@pytest.mark.slow
async def test_redis_is_read(fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    """What another gateway put into Redis is found, with the time since it was confirmed; none learns of the look."""
    text = await fleet.put("prompt.txt", b"Hello world! " * 40)
    async with run_valkey() as url:
        config = await fleet.write(redis_url=url)

        async def look(*arguments: Any) -> dict[str, Any]:
            assert await pdd("index", *arguments, "--config", config, "--json") == 0
            return dict(json.loads(capsys.readouterr().out)["instances"])

        await share(url, 160)
        stats = await look("stats")
        assert (stats["md1"]["blocks"], stats["md1"]["predicted"]) == (10, True)
        assert 0 <= stats["md1"]["update_age_s"] < 20
        assert stats["p1"]["update_age_s"] is None
        assert (await look("lookup", "--model", MODEL, "--prompt", text))["md1"]["tokens"] == 0
        async with open_documents(url) as store:
            assert await store.living() == []
        assert fleet.calls == 0
