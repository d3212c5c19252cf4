"""Two regions on one machine: stores, engines, the bridge, and the link that joins them.

Region A holds P, RLD and their KV store. Region B holds MD, its KV store and the bridge. Whatever passes between the
regions goes through one shaped link: the bridge's reading of A's store, and the gateway's calls to MD and the bridge.
"""

import asyncio
import contextlib
import random
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import httpx
import msgspec

from backends.engines.dialect import read_samples
from backends.transport.valkey import EmbeddedValkey, ValkeyUnavailable
from gateway.demo.processes import Child, DemoFailed, pdd

MODEL = "demo"
KV_CHUNK_TOKENS = 64
STORE_BYTES = 2 << 30
CONTROL_TIMEOUT_S = 30.0
ROLES = ("p", "rld", "md")
PORTS = range(12000, 32000)


def role_of(name: str) -> str:
    """Role of an engine, as the settings spell it, from its name."""
    return name.rstrip("0123456789").upper()


def region_of(name: str) -> str:
    return "b" if role_of(name) == "MD" else "a"


class EngineEvents(msgspec.Struct):
    """Where an engine publishes its KV events."""

    endpoint: str
    replay_endpoint: str

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it, so that no link can lie between."""
        return self.endpoint.startswith("ipc://")

    def move(self, kind: str, address: str) -> None:
        """Reach the ``events`` or the ``replay`` socket elsewhere: through the link."""
        if kind == "events":
            self.endpoint = address
        else:
            self.replay_endpoint = address


class EngineKit(Protocol):
    """What the engines of both regions are. The fields tell how they name the KV that they keep in the stores."""

    dialect: str
    hash_seed: str | None
    chunk_tokens: int
    kv_name: str | None

    def settings(self, name: str) -> dict[str, Any]:
        """What the gateway's configuration says of an engine of this kind beside where it is."""
        ...

    def companions(self, cluster: "Cluster") -> list[Child]:
        """Processes that must run before the engines do, beside the stores."""
        ...

    def engine(self, cluster: "Cluster", name: str, listen: str = "127.0.0.1:0") -> Child:
        """One engine, named by its role and a number."""
        ...


class ReferenceKit:
    """The reference engine, with LMCache inside it."""

    dialect = "lmcache"
    hash_seed: str | None = "no_vllm"
    chunk_tokens = KV_CHUNK_TOKENS
    kv_name: str | None = None

    def settings(self, name: str) -> dict[str, Any]:
        return {}

    def companions(self, cluster: "Cluster") -> list[Child]:
        """None: the engines use the stores themselves."""
        return []

    def engine(self, cluster: "Cluster", name: str, listen: str = "127.0.0.1:0") -> Child:
        return Child(name, cluster.folder, pdd(*self.arguments(cluster, name, listen)))

    def arguments(self, cluster: "Cluster", name: str, listen: str) -> list[str]:
        """What ``pdd`` is told, beside ``--die-with-parent``."""
        plan = cluster.plan
        role = {"P": "prefill", "RLD": "relay", "MD": "main"}[role_of(name)]
        arguments = ["engine", "--role", role, "--model", str(plan.model), "--served-model-name", MODEL]
        arguments += ["--kv-store", cluster.stores[region_of(name)].url, "--kv-chunk", str(self.chunk_tokens)]
        arguments += ["--dtype", plan.dtype, "--threads", str(plan.threads), "--listen", listen]
        return arguments


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """What to start. ``counts``: how many P, RLD and MD."""

    model: Path
    rate_mbit: float
    delay_ms: float
    dtype: str = "float32"
    threads: int = 1
    counts: tuple[int, int, int] = (1, 1, 1)
    kit: EngineKit = field(default_factory=ReferenceKit)


@dataclass(slots=True)
class Cluster:
    """What runs. URLs of ``main`` and ``bridge`` lead through the link; ``children`` are named as in the settings."""

    plan: ClusterPlan
    children: dict[str, Child] = field(default_factory=dict)
    through_link: dict[str, str] = field(default_factory=dict)
    stores: dict[str, EmbeddedValkey] = field(default_factory=dict)
    redis_url: str = ""
    folder: Path = Path()
    kv_events: dict[str, EngineEvents] = field(default_factory=dict)

    async def wan_bytes(self) -> int:
        """Bytes that crossed the link so far, both ways."""
        stats = await self._wan_stats()
        return sum(int(stats[key]) for key in ("to_target_bytes", "from_target_bytes"))

    async def store_bytes(self) -> int:
        """Bytes that came over the link from region A's store so far: KV."""
        near = self.through_link["store"].rpartition(":")[2]
        routes = (await self._wan_stats())["routes"]
        return sum(int(route["from_target_bytes"]) for route in routes if route["listen"].endswith(f":{near}"))

    async def taken_from_store(self, name: str) -> int:
        """Prompt tokens whose KV an engine took from its region's store since it started."""
        async with httpx.AsyncClient(timeout=CONTROL_TIMEOUT_S) as client:
            page = (await client.get(f"{self.children[name].url}/metrics")).text
        return int(sum(read_samples(page, "vllm:external_prefix_cache_hits_total")))

    async def _wan_stats(self) -> dict[str, Any]:
        async with httpx.AsyncClient(timeout=CONTROL_TIMEOUT_S) as client:
            return dict((await client.get(f"{self.children['wan'].url}/stats")).json())

    def settings(self, listen: str) -> dict[str, Any]:
        engines = []
        for name, child in self.children.items():
            if name in self.kv_events:
                url = self.through_link.get(name, child.url)
                engine = {"id": name, "role": role_of(name), "model": MODEL, "region": region_of(name), "url": url}
                events = {
                    "kv_events": self.kv_events[name].endpoint,
                    "kv_replay": self.kv_events[name].replay_endpoint,
                }
                engines.append(engine | events | {"max_running": 16} | self.plan.kit.settings(name))
        plan = self.plan
        link: dict[str, Any] = {"source": "a", "dest": "b", "bridge": self.through_link["bridge"]}
        link |= {"dialect": plan.kit.dialect, "hash_seed": plan.kit.hash_seed, "chunk_tokens": plan.kit.chunk_tokens}
        link |= {"dtype": plan.dtype, "rate_mbit": plan.rate_mbit}
        model: dict[str, Any] = {"name": MODEL, "path": str(plan.model), "kv_dtype": plan.dtype}
        model |= {"kv_name": plan.kit.kv_name}
        return {
            "listen": listen,
            "redis_url": self.redis_url,
            "models": [model],
            "engines": engines,
            "links": [link],
            "health_interval_s": 0.5,
            "canary_interval_s": 0,  # what crosses the link is measured here
        }


@asynccontextmanager
async def run_cluster(plan: ClusterPlan, progress: Callable[[str], None]) -> AsyncIterator[Cluster]:
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
    companions = plan.kit.companions(cluster)
    names = [f"{role}{number + 1}" for role, count in zip(ROLES, plan.counts, strict=True) for number in range(count)]
    started = [plan.kit.engine(cluster, name) for name in names]
    for children in filter(None, (companions, started)):
        progress(f"starting {', '.join(child.name for child in children)}")
        for child in children:
            cluster.children[child.name] = child
            stack.push_async_callback(child.stop)
        await start_all(children)
    async with httpx.AsyncClient(timeout=10) as client:
        for child in started:
            cluster.kv_events[child.name] = await find_kv_events(client, child.url)


async def find_kv_events(client: httpx.AsyncClient, url: str) -> EngineEvents:
    reply = (await client.get(f"{url}/kv_event_sources")).raise_for_status()
    return msgspec.json.decode(reply.content, type=dict[str, EngineEvents])["0"]


async def _start_link(cluster: Cluster, stack: AsyncExitStack, progress: Callable[[str], None]) -> None:
    plan = cluster.plan
    progress(f"starting the link ({plan.rate_mbit:g} Mbit/s, {plan.delay_ms:g} ms each way) and the KV bridge")
    bridge_far = find_free_ports(1)[0]
    far: dict[str, int] = {"store": cluster.stores["a"].port, "bridge": bridge_far}
    for name, events in cluster.kv_events.items():
        if region_of(name) == "a":
            continue
        far |= {name: _port(cluster.children[name].url)}
        if not events.is_local:
            far |= {f"{name}.events": _port(events.endpoint), f"{name}.replay": _port(events.replay_endpoint)}
    near = dict(zip(far, find_free_ports(len(far)), strict=True))
    routes = [f"--route=127.0.0.1:{near[name]}=127.0.0.1:{port}" for name, port in far.items()]
    shape = ["--rate-mbit", str(plan.rate_mbit), "--delay-ms", str(plan.delay_ms)]
    wan = Child("wan", cluster.folder, pdd("wan", *routes, *shape))
    bridge = bridge_child(cluster, near["store"], bridge_far)
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


def bridge_child(cluster: Cluster, source_port: int, port: int) -> Child:
    """The bridge; its source lies behind the link."""
    source, dest = f"redis://127.0.0.1:{source_port}", cluster.stores["b"].url
    command = pdd("bridge", "--source", source, "--dest", dest, "--listen", f"127.0.0.1:{port}")
    return Child("bridge", cluster.folder, command)


async def start_all(children: Sequence[Child]) -> None:
    """Start several at once. Raises the first DemoFailed."""
    try:
        async with asyncio.TaskGroup() as tasks:
            for child in children:
                tasks.create_task(child.start())
    except* DemoFailed as group:
        raise group.exceptions[0] from None


def find_free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody has, outside the range from which the kernel gives any away meanwhile."""
    ports: list[int] = []
    for port in random.sample(PORTS, len(PORTS)):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            ports.append(port)
        if len(ports) == count:
            return ports
    raise DemoFailed(f"no {count} ports from {PORTS.start} to {PORTS.stop} are free")


def _port(url: str) -> int:
    port = urlsplit(url).port
    assert port is not None
    return port
