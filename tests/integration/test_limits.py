"""Two real gateway processes before fake engines, with one Valkey: keys and limits hold over both."""

import asyncio
import contextlib
import json
import random
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import pytest_asyncio

from gateway.auth.keys import ApiKey, KeyRecord, hash_key, make_key
from gateway.auth.tenants import KEY_KIND, TENANT_KIND, TenantRecord
from gateway.config.document_store import DocumentStore
from gateway.config.rulebook import RULES
from gateway.demo.processes import Child, pdd
from tests.fakes.script import Script
from tests.gateway.cli.fleet import MODEL, Fleet, open_fleet
from tests.gateway.model_dir import model_dir
from tests.integration.regions import eventually
from tests.valkey import open_documents, run_valkey

__all__ = ["model_dir"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240), pytest.mark.asyncio(loop_scope="session")]
SECRET = b"0123456789abcdef0123"
BODY: dict[str, Any] = {"model": MODEL, "prompt": [5, 6, 7, 8], "max_tokens": 8, "ignore_eos": True}


@dataclass(slots=True)
class Pair:
    """Two gateway processes."""

    urls: list[str]
    store: DocumentStore
    fleet: Fleet
    client: httpx.AsyncClient

    async def admit(self, name: str, **limits: int) -> "Tenant":
        """Make a tenant with a key and limits, known to both."""
        key = make_key()
        await self.store.put(TENANT_KIND, name, TenantRecord(), author="test")
        record = KeyRecord(tenant=name, hash=hash_key(SECRET, key), created_s=0)
        await self.store.put(KEY_KIND, key.id, record, author="test")
        document = await self.store.put(RULES, name, {"limits": limits}, author="test")

        async def are_applied() -> bool:
            living = await self.store.living()
            return len(living) == 2 and all(ack.revision >= document.revision for ack in living)

        assert await eventually(are_applied, 10)
        return Tenant(self, key)

    async def held(self) -> int:
        """Slots that are held in Redis."""
        client = self.store.redis.commands
        return sum([await client.zcard(key) async for key in client.scan_iter("pdd:limits:*:slots")])


@dataclass(slots=True)
class Tenant:
    """One tenant's client."""

    pair: Pair
    key: ApiKey

    async def ask(self, gateway: int, **changes: Any) -> httpx.Response:
        """Send one completion."""
        headers = {"authorization": f"Bearer {self.key}"}
        url = f"{self.pair.urls[gateway]}/v1/completions"
        return await self.pair.client.post(url, json=BODY | changes, headers=headers)

    async def abort(self, gateway: int, pieces: int) -> None:
        """Send one streamed completion, read so many pieces of the response, and leave.

        Not with httpx, which loses a connection that is cancelled while it opens.
        """
        listen = urlsplit(self.pair.urls[gateway])
        body = json.dumps(BODY | {"stream": True, "max_tokens": 4000})
        head = [
            f"POST /v1/completions HTTP/1.1\r\nhost: {listen.netloc}\r\nauthorization: Bearer {self.key}",
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n",
        ]
        reader, writer = await asyncio.open_connection(listen.hostname, listen.port)
        try:
            writer.write(("\r\n".join(head) + body).encode())
            for _ in range(pieces):
                if not await reader.read(65536):
                    break
        finally:
            writer.close()


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def pair(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pair]:
    """Run both."""
    folder = tmp_path_factory.mktemp("limits")
    async with AsyncExitStack() as stack:
        stack.enter_context(pytest.MonkeyPatch.context()).setenv("PDD_SECRET", SECRET.decode())
        url = await stack.enter_async_context(run_valkey())
        fleet = await stack.enter_async_context(open_fleet(model_dir, folder))
        store = await stack.enter_async_context(open_documents(url))
        engines = [engine | {"region": "a"} for engine in fleet.settings()["engines"]]
        settings = {"engines": engines, "links": [], "redis_url": url, "auth": {"secret_env": "PDD_SECRET"}}
        settings["admin"] = {"key_env": "PDD_SECRET"}
        config = await fleet.write(**settings, canary_interval_s=0)
        many = httpx.Limits(max_connections=200)
        client = await stack.enter_async_context(httpx.AsyncClient(timeout=60.0, limits=many))
        urls = []
        for number in range(2):
            command = pdd("serve", "--config", str(config), "--listen", "127.0.0.1:0")
            child = Child(f"gateway{number}", folder, command, patience_s=60.0)
            stack.push_async_callback(child.stop)
            await child.start()
            urls.append(child.url)

        async def is_ready() -> bool:
            return all([(await client.get(f"{url}/ready")).status_code == 200 for url in urls])

        assert await eventually(is_ready, 30)
        yield Pair(urls, store, fleet, client)


async def test_requests_a_minute_over_both(pair: Pair) -> None:
    """200 requests at once over both: as many pass as the bucket holds, and what a refill allows in the meantime."""
    tenant = await pair.admit("requests", requests_per_min=60)
    started_s = time.monotonic()
    answers = await asyncio.gather(*(tenant.ask(number % 2) for number in range(200)))
    refilled = time.monotonic() - started_s
    statuses = [answer.status_code for answer in answers]
    assert set(statuses) == {200, 429}
    assert 60 <= statuses.count(200) <= 60 + refilled + 1
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert refused.json()["error"]["code"] == "rate_limit_exceeded" and int(refused.headers["retry-after"]) >= 1


async def test_tokens_a_minute_over_both(pair: Pair) -> None:
    """True token counts are what is charged, over both processes: no more than a bucket and its refill are used."""
    tenant = await pair.admit("tokens", tokens_per_min=600)
    started_s = time.monotonic()
    used = 0
    for _ in range(10):
        answers = await asyncio.gather(*(tenant.ask(number % 2) for number in range(20)))
        used += sum(answer.json()["usage"]["total_tokens"] for answer in answers if answer.status_code == 200)
    assert 500 <= used <= 600 + 10 * (time.monotonic() - started_s) + 12


async def test_slots_are_free_after_500_aborts(pair: Pair) -> None:
    """TEN-07: never more run than have slots; soon after 500 random aborts on both none is held."""
    tenant = await pair.admit("slots", concurrent=8)
    for engine in pair.fleet.engines.values():
        engine.script = Script(chunks=(1,))
    chance = random.Random(11)
    most = 0

    async def abort() -> None:
        # A client that leaves before the answer's head cancels the request in whatever state it is.
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(chance.choice((0.002, 0.01, 0.05, 5.0))):
                await tenant.abort(chance.randrange(2), chance.randrange(6))

    for _ in range(25):
        aborts = asyncio.gather(*(abort() for _ in range(20)))
        while not aborts.done():
            most = max(most, await pair.held())
        await aborts
    assert 1 <= most <= 8

    async def are_free() -> bool:
        return await pair.held() == 0

    assert await eventually(are_free, 5)
    answers = await asyncio.gather(*(tenant.ask(number % 2) for number in range(8)))
    assert [answer.status_code for answer in answers] == [200] * 8
    operator = {"authorization": f"Bearer {SECRET.decode()}"}
    page = (await pair.client.get(f"{pair.urls[0]}/metrics", headers=operator)).text
    assert "pdd_limits_local 0.0" in page and "pdd_waiting 0.0" in page


async def test_a_revoked_key_opens_nothing_within_a_second(pair: Pair) -> None:
    """Both processes refuse a key less than a second after it was revoked; without keys nobody gets in."""
    tenant = await pair.admit("revoked")
    assert [(await tenant.ask(number)).status_code for number in range(2)] == [200, 200]
    assert (await pair.client.post(f"{pair.urls[0]}/v1/completions", json=BODY)).status_code == 401
    document = await pair.store.get(KEY_KIND, tenant.key.id)
    assert document is not None
    await pair.store.put(KEY_KIND, tenant.key.id, document.value | {"revoked_s": 1}, author="test")

    async def is_refused() -> bool:
        return [(await tenant.ask(number)).status_code for number in range(2)] == [401, 401]

    assert await eventually(is_refused, 1)
    assert (await pair.client.get(f"{pair.urls[0]}/health")).status_code == 200
