"""Live rules and topology over two gateway processes and a real Valkey, in front of fake engines."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import yaml

from backends.transport.valkey import EmbeddedValkey
from backends.types import LinkState
from gateway.config.document_store import DocumentStore
from gateway.config.rulebook import RULES
from gateway.demo.processes import Child, pdd
from tests.fakes.engine import FakeEngine, answer
from tests.fakes.server import AppServer
from tests.fakes.silent_store import SilentStore
from tests.gateway.cli.fleet import pdd as run_pdd
from tests.gateway.model_dir import make_model_dir
from tests.integration.regions import eventually
from tests.valkey import open_documents

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

MODEL = "demo"
NAMES = ("p1", "rld1", "rld2", "md1")
PROMPT = list(range(20, 420))
PINNED = {"regions": ["a"]}
LINK = LinkState(rate_bytes_per_s=1e6, queued_bytes=0, rtt_s=0.03, up=True, wan_bytes_total=0)


@dataclass(slots=True)
class Bridge:
    """A bridge that tells of its link, and counts what else it is asked for; nothing ever crosses."""

    transfers: int = 0

    async def app(
        self,
        scope: dict[str, Any],
        receive: Callable[[], Awaitable[Any]],
        send: Callable[[dict[str, Any]], Awaitable[None]],
    ) -> None:
        """Answer one request."""
        known = scope["path"] == "/v1/link"
        self.transfers += not known
        await answer(send, 200 if known else 500, msgspec.json.encode(LINK))


@dataclass(slots=True)
class Pair:
    """Two gateways, what stands around them, and how a test sees them."""

    valkey: EmbeddedValkey
    engines: dict[str, FakeEngine]
    bridge: Bridge
    gateways: tuple[Child, Child]
    client: httpx.AsyncClient
    store: DocumentStore
    config: Path
    folder: Path

    async def plan(self, gateway: Child) -> str:
        """Ask for a short answer; its plan and reason, after checking that it is whole."""
        body = {"model": MODEL, "prompt": PROMPT, "max_tokens": 3, "temperature": 0}
        response = await self.client.post(f"{gateway.url}/v1/completions", json=body)
        assert response.status_code == 200, response.text
        assert response.json()["usage"]["completion_tokens"] == 3
        return f"{response.headers['x-pdd-plan']} {response.headers['x-pdd-reason']}"

    async def plans(self) -> set[str]:
        """The plans of the next request at either gateway."""
        return {await self.plan(gateway) for gateway in self.gateways}

    async def admin(self, gateway: Child) -> dict[str, Any]:
        """What a gateway says of its rules."""
        return dict((await self.client.get(f"{gateway.url}/admin/rules")).json())

    async def rules(self, verb: str, *arguments: str | Path, **body: Any) -> int:
        """Run a ``pdd rules`` command; the body becomes its file."""
        return await self.command("rules", verb, *arguments, value=body if verb == "set" else None)

    async def command(self, name: str, verb: str, *arguments: str | Path, value: Any = None) -> int:
        """Run a command over this pair's configuration; the exit status."""
        files: list[Path] = []
        if value is not None:
            files = [self.folder / "new.yaml"]
            await asyncio.to_thread(files[0].write_text, yaml.safe_dump(value))
        return await run_pdd(name, verb, *files, "--config", self.config, *arguments)


@asynccontextmanager
async def open_pair(folder: Path) -> AsyncIterator[Pair]:
    """Run everything for the length of the block."""
    async with AsyncExitStack() as stack:
        valkey = await stack.enter_async_context(EmbeddedValkey())
        engines = {name: await stack.enter_async_context(FakeEngine(name)) for name in NAMES}
        bridge = Bridge()
        served = await stack.enter_async_context(AppServer(bridge.app))
        config = folder / "gateway.yaml"
        text = yaml.safe_dump(await asyncio.to_thread(make_settings, folder, engines, served.url, valkey.url))
        await asyncio.to_thread(config.write_text, text)
        gateways = Child("g1", folder, serve(config)), Child("g2", folder, serve(config))
        for gateway in gateways:
            stack.push_async_callback(gateway.stop)
        await asyncio.gather(*(gateway.start() for gateway in gateways))
        client = await stack.enter_async_context(httpx.AsyncClient(timeout=20.0))
        store = await stack.enter_async_context(open_documents(valkey.url))
        yield Pair(valkey, engines, bridge, gateways, client, store, config, folder)


def serve(config: Path, *arguments: str) -> list[str]:
    """Command line of a gateway."""
    return pdd("serve", "--config", str(config), "--listen", "127.0.0.1:0", *arguments)


def make_settings(folder: Path, engines: dict[str, FakeEngine], bridge_url: str, redis_url: str) -> dict[str, Any]:
    """The configuration: the first, second and last engine; every long prompt is worth a relay."""
    return {
        "models": [
            {
                "name": MODEL,
                "path": str(make_model_dir(folder / "model", context_tokens=8192)),
                "kv_bytes_per_token": 100_000,
            }
        ],
        "engines": [engine(name, engines[name].url) for name in NAMES if name != "rld2"],
        "links": [{"source": "a", "dest": "b", "bridge": bridge_url, "chunk_tokens": 64}],
        "redis_url": redis_url,
        "rules": {"pipelines": ["relay"]},
        "health_interval_s": 0.1,
        "canary_interval_s": 0,
    }


def engine(name: str, url: str) -> dict[str, Any]:
    """Settings of one engine."""
    role = name.rstrip("0123456789").upper()
    return {"id": name, "role": role, "model": MODEL, "region": "b" if role == "MD" else "a", "url": url}


async def test_rules_change_the_next_request_everywhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`rules set --wait` changes the plan of the next request at both processes within a second, and proves it; what is
    invalid changes nothing; a rollback takes it back; a change whose notice is lost is seen all the same.
    """
    async with open_pair(tmp_path) as pair:
        assert await pair.plans() == {"relay relay_only"}
        assert await pair.rules("set", pipelines=["relay"]) == 0
        assert capsys.readouterr().out.count("applied by process") == 2, "a change waits without being told to"
        begin_s = time.monotonic()
        assert await pair.rules("set", "--wait", **PINNED) == 0
        took_s = time.monotonic() - begin_s
        assert await pair.plans() == {"direct region_pinned"}
        assert took_s < 1.0
        assert capsys.readouterr().out.count("applied by process") == 2

        assert await pair.rules("set", "--wait", regions=[]) == 1
        assert "refused: default: regions" in capsys.readouterr().err
        assert await pair.plans() == {"direct region_pinned"}
        await pair.store.put(RULES, "default", {"regions": "not a list"}, author="a newer pdd")
        for gateway in pair.gateways:

            async def refuses(gateway: Child = gateway) -> bool:
                return bool((await pair.admin(gateway))["refusals"])

            assert await eventually(refuses, 5.0)
        assert await pair.plans() == {"direct region_pinned"}

        assert await pair.rules("rollback", "--to", "1", "--wait") == 0
        assert await pair.plans() == {"relay relay_only"}

        await SilentStore(pair.store.redis).put(RULES, "default", PINNED, author="x")

        async def is_pinned() -> bool:
            return await pair.plans() == {"direct region_pinned"}

        assert await eventually(is_pinned, 5.0)


async def test_redis_dies_under_traffic(tmp_path: Path) -> None:
    """RED-01, RED-02: Redis is killed and comes back empty under traffic: no request fails or is planned otherwise, and
    then Redis has the rules again, and the next change arrives.
    """
    async with open_pair(tmp_path) as pair:
        assert await pair.rules("set", "--wait", **PINNED) == 0
        seen: list[str] = []
        traffic = [asyncio.create_task(ask_on(pair, gateway, seen)) for gateway in pair.gateways]
        try:
            os.kill(pair.valkey.pid, signal.SIGKILL)
            assert await eventually(lambda: all_say(pair, redis_up=False), 10.0)
            assert await all_have(pair, "pdd_redis_up 0.0") and await all_have(pair, "pdd_index_redis_up 0.0")
            assert await goes_on(seen, 10)
            await pair.valkey.stop()
            await pair.valkey.start()
            await pair.store.redis.commands.connection_pool.disconnect()
            assert await eventually(lambda: all_say(pair, redis_up=True), 10.0)
            assert await all_have(pair, "pdd_redis_up 1.0") and await all_have(pair, "pdd_index_redis_up 1.0")
            document = await pair.store.get(RULES, "default")
            assert document is not None and (document.version, document.value) == (1, PINNED)
            assert await pair.rules("set", "--wait", "--expect-version", "1", regions=["a", "c"]) == 0
            assert await goes_on(seen, 10)
        finally:
            for task in traffic:
                task.cancel()
            results = await asyncio.gather(*traffic, return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError) for result in results), results
        assert set(seen) == {"direct region_pinned"}
        assert not pair.bridge.transfers and not pair.engines["md1"].calls


async def ask_on(pair: Pair, gateway: Child, seen: list[str]) -> None:
    """Ask again and again, and note each plan."""
    while True:
        seen.append(await pair.plan(gateway))


async def all_say(pair: Pair, **state: Any) -> bool:
    """Whether both gateways say so of their rules."""
    return all([state.items() <= (await pair.admin(gateway)).items() for gateway in pair.gateways])


async def all_have(pair: Pair, line: str) -> bool:
    """Whether the metrics of both gateways have a line."""
    return all([line in (await pair.client.get(f"{gateway.url}/metrics")).text for gateway in pair.gateways])


async def goes_on(seen: list[str], count: int) -> bool:
    """Whether so many more answers come, soon."""
    goal = len(seen) + count

    async def is_so() -> bool:
        return len(seen) >= goal

    return await eventually(is_so, 10.0)


async def test_no_redis_at_start(tmp_path: Path) -> None:
    """Without Redis a process is not ready, says why and serves nobody; with `--rules FILE` it serves by that file."""
    async with open_pair(tmp_path) as pair:
        await pair.valkey.stop()
        rules = tmp_path / "rules.yaml"
        await asyncio.to_thread(rules.write_text, yaml.safe_dump(PINNED))
        bare = Child("bare", tmp_path, serve(pair.config))
        given = Child("given", tmp_path, serve(pair.config, "--rules", str(rules)))
        try:
            await asyncio.gather(bare.start(), given.start())
            ready = await pair.client.get(f"{bare.url}/ready")
            assert ready.status_code == 503 and "rules: Redis does not answer" in ready.text
            body = {"model": MODEL, "prompt": PROMPT, "max_tokens": 3}
            refused = await pair.client.post(f"{bare.url}/v1/completions", json=body)
            assert refused.status_code == 503 and refused.json()["error"]["code"] == "rules_unknown"
            assert (await pair.client.get(f"{given.url}/ready")).status_code == 200
            assert await pair.plan(given) == "direct region_pinned"
            await pair.valkey.start()

            async def is_ready() -> bool:
                return (await pair.client.get(f"{bare.url}/ready")).status_code == 200

            assert await eventually(is_ready, 10.0)
            assert await pair.plan(bare) == "relay relay_only"
        finally:
            await bare.stop()
            await given.stop()


async def test_engines_change_while_requests_run(tmp_path: Path) -> None:
    """OPS-05: `pool add`, `drain` and `remove` hold at once at both processes; nothing fails meanwhile."""
    async with open_pair(tmp_path) as pair:
        seen: list[str] = []
        traffic = [asyncio.create_task(ask_on(pair, gateway, seen)) for gateway in pair.gateways]
        try:
            new = {"engines": [engine("rld2", pair.engines["rld2"].url)]}
            assert await pair.command("pool", "add", "--wait", value=new) == 0
            assert await eventually(lambda: all_have(pair, 'pdd_instance_up{instance="rld2",role="RLD"} 1.0'), 10.0)
            assert await pair.command("pool", "drain", "rld1", "--wait") == 0
            await pair.engines["rld2"].calls_made(1)
            assert await goes_on(seen, 4)
            calls = len(pair.engines["rld1"].calls)
            assert await pair.command("pool", "remove", "rld1", "--wait") == 0
            assert await goes_on(seen, 10)
            assert len(pair.engines["rld1"].calls) == calls
        finally:
            for task in traffic:
                task.cancel()
            results = await asyncio.gather(*traffic, return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError) for result in results), results
        metrics = (await pair.client.get(f"{pair.gateways[0].url}/metrics")).text
        assert 'pdd_instance_up{instance="rld2"' in metrics and 'instance="rld1"' not in metrics
