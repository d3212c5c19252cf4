"""Two regions on one machine: stores, engines, the bridge, and the link that joins them.

Region A holds P, RLD and their KV store. Region B holds MD, its KV store and the bridge. Whatever passes between the
regions goes through one shaped link: the bridge's reading of A's store, and the gateway's calls to MD and the bridge.
"""

import asyncio
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec

from backends.valkey import EmbeddedValkey, ValkeyUnavailable
from gateway.demo.processes import Child, DemoFailed

MODEL = "demo"
KV_CHUNK_TOKENS = 64
STORE_BYTES = 2 << 30


class EventSource(msgspec.Struct):
    """Where an engine publishes its KV events."""

    endpoint: str
    replay_endpoint: str

    def move(self, kind: str, address: str) -> None:
        """Reach the ``events`` or the ``replay`` socket elsewhere: through the link."""
        if kind == "events":
            self.endpoint = address
        else:
            self.replay_endpoint = address


@dataclass(frozen=True, slots=True)
class Plan:
    """What to start. ``counts``: how many P, RLD and MD."""

    model: Path
    rate_mbit: float
    delay_ms: float
    dtype: str = "float32"
    threads: int = 1
    counts: tuple[int, int, int] = (1, 1, 1)


@dataclass(slots=True)
class Cluster:
    """What runs. URLs of ``main`` and ``bridge`` lead through the link; ``children`` are named as in the settings."""

    plan: Plan
    children: dict[str, Child] = field(default_factory=dict)
    through_link: dict[str, str] = field(default_factory=dict)
    stores: dict[str, EmbeddedValkey] = field(default_factory=dict)
    redis_url: str = ""
    folder: Path = Path()
    kv_events: dict[str, EventSource] = field(default_factory=dict)

    async def wan_bytes(self) -> int:
        """Bytes that crossed the link so far, both ways."""
        stats = await self._wan_stats()
        return sum(int(stats[key]) for key in ("to_target_bytes", "from_target_bytes"))

    async def store_bytes(self) -> int:
        """Bytes that came over the link from region A's store so far: KV."""
        near = self.through_link["store"].rpartition(":")[2]
        routes = (await self._wan_stats())["routes"]
        return sum(int(route["from_target_bytes"]) for route in routes if route["listen"].endswith(f":{near}"))

    async def _wan_stats(self) -> dict[str, Any]:
        async with httpx.AsyncClient() as client:
            return dict((await client.get(f"{self.children['wan'].url}/stats")).json())

    async def control_wan(self, verb: str, **body: Any) -> None:
        """Stall, cut, heal or set the link."""
        async with httpx.AsyncClient() as client:
            (await client.post(f"{self.children['wan'].url}/{verb}", json=body)).raise_for_status()

    def settings(self, listen: str, kv_bytes_per_token: int) -> dict[str, Any]:
        """The gateway's configuration for this cluster."""
        engines = []
        for name, child in self.children.items():
            role = name.rstrip("0123456789").upper()
            if role in ("P", "RLD", "MD"):
                url = self.through_link.get(name, child.url)
                region = "b" if role == "MD" else "a"
                engine = {"id": name, "role": role, "model": MODEL, "region": region, "url": url, "max_running": 16}
                events = self.kv_events[name]
                engines.append(engine | {"kv_events": events.endpoint, "kv_replay": events.replay_endpoint})
        link: dict[str, Any] = {"source": "a", "dest": "b", "bridge": self.through_link["bridge"], "dialect": "lmcache"}
        link |= {"chunk_tokens": KV_CHUNK_TOKENS, "dtype": self.plan.dtype, "rate_mbit": self.plan.rate_mbit}
        model = {"name": MODEL, "path": str(self.plan.model), "kv_bytes_per_token": kv_bytes_per_token}
        return {
            "listen": listen,
            "redis_url": self.redis_url,
            "models": [model],
            "engines": engines,
            "links": [link],
            "health_interval_s": 0.5,
        }


@asynccontextmanager
async def run_cluster(plan: Plan, progress: Callable[[str], None]) -> AsyncIterator[Cluster]:
    """Start everything, give it to the block, end everything. Raises DemoFailed."""
    cluster = Cluster(plan)
    async with AsyncExitStack() as stack:
        cluster.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pdd-demo-")))
        try:
            await _start_stores(cluster, stack, progress)
        except ValkeyUnavailable as error:
            raise DemoFailed(str(error)) from None
        await _start_engines(cluster, stack, progress)
        await _start_link(cluster, stack, progress)
        yield cluster


async def _start_stores(cluster: Cluster, stack: AsyncExitStack, progress: Callable[[str], None]) -> None:
    progress("starting Valkey: shared state, KV store of region A, KV store of region B")
    shared = await stack.enter_async_context(EmbeddedValkey())
    cluster.redis_url = shared.url
    for region in ("a", "b"):
        store = EmbeddedValkey(max_memory_bytes=STORE_BYTES, policy="allkeys-lru")
        cluster.stores[region] = await stack.enter_async_context(store)


async def _start_engines(cluster: Cluster, stack: AsyncExitStack, progress: Callable[[str], None]) -> None:
    plan = cluster.plan
    roles = (("p", "prefill", "a"), ("rld", "relay", "a"), ("md", "main", "b"))
    started = []
    for (name, role, region), count in zip(roles, plan.counts, strict=True):
        for number in range(1, count + 1):
            id_ = f"{name}{number}"
            child = Child(id_, cluster.folder, *engine_arguments(cluster, role, region))
            cluster.children[id_] = child
            stack.push_async_callback(child.stop)
            started.append(child)
    progress(f"starting engines: {', '.join(child.name for child in started)}")
    await start_all(started)
    async with httpx.AsyncClient(timeout=10) as client:
        for child in started:
            cluster.kv_events[child.name] = await find_kv_events(client, child.url)


def engine_arguments(cluster: Cluster, role: str, region: str, listen: str = "127.0.0.1:0") -> list[str]:
    """Command line of one engine."""
    plan = cluster.plan
    arguments = ["engine", "--role", role, "--model", str(plan.model), "--served-model-name", MODEL]
    arguments += ["--kv-store", cluster.stores[region].url, "--kv-chunk", str(KV_CHUNK_TOKENS)]
    return [*arguments, "--dtype", plan.dtype, "--threads", str(plan.threads), "--listen", listen]


async def find_kv_events(client: httpx.AsyncClient, url: str) -> EventSource:
    """Ask an engine where it publishes its KV events."""
    reply = (await client.get(f"{url}/kv_event_sources")).raise_for_status()
    return msgspec.json.decode(reply.content, type=list[EventSource])[0]


async def _start_link(cluster: Cluster, stack: AsyncExitStack, progress: Callable[[str], None]) -> None:
    plan = cluster.plan
    progress(f"starting the link ({plan.rate_mbit:g} Mbit/s, {plan.delay_ms:g} ms each way) and the KV bridge")
    bridge_far = find_free_ports(1)[0]
    far: dict[str, int] = {"store": cluster.stores["a"].port, "bridge": bridge_far}
    for name in (name for name in cluster.children if name.startswith("md")):
        events = cluster.kv_events[name]
        far |= {name: _port(cluster.children[name].url)}
        far |= {f"{name}.events": _port(events.endpoint), f"{name}.replay": _port(events.replay_endpoint)}
    near = dict(zip(far, find_free_ports(len(far)), strict=True))
    routes = [f"--route=127.0.0.1:{near[name]}=127.0.0.1:{port}" for name, port in far.items()]
    shape = ["--rate-mbit", str(plan.rate_mbit), "--delay-ms", str(plan.delay_ms)]
    wan = Child("wan", cluster.folder, "wan", *routes, *shape)
    bridge = Child("bridge", cluster.folder, *bridge_arguments(cluster, near["store"], bridge_far))
    for child in (wan, bridge):
        cluster.children[child.name] = child
        stack.push_async_callback(child.stop)
        await child.start()
    for name, port in near.items():
        kind = name.partition(".")[2]
        if kind:
            cluster.kv_events[name.partition(".")[0]].move(kind, f"tcp://127.0.0.1:{port}")
        else:
            cluster.through_link[name] = f"http://127.0.0.1:{port}"


def bridge_arguments(cluster: Cluster, source_port: int, port: int) -> list[str]:
    """Command line of the bridge; its source lies behind the link."""
    source, dest = f"redis://127.0.0.1:{source_port}", cluster.stores["b"].url
    return ["bridge", "--source", source, "--dest", dest, "--listen", f"127.0.0.1:{port}"]


async def start_all(children: Sequence[Child]) -> None:
    """Start several at once. Raises the first DemoFailed."""
    try:
        async with asyncio.TaskGroup() as tasks:
            for child in children:
                tasks.create_task(child.start())
    except* DemoFailed as group:
        raise group.exceptions[0] from None


def find_free_ports(count: int) -> list[int]:
    """Ports that nobody uses just now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports


def _port(url: str) -> int:
    port = urlsplit(url).port
    assert port is not None
    return port
