"""The parts of the day: processes with fixed ports that can be killed, stopped and started again."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from backends.engines.reference.demo_model import MODEL_DIR
from backends.transport.valkey import EmbeddedValkey
from gateway.auth.keys import KeyRecord, hash_key, make_key
from gateway.auth.tenants import KEY_KIND, TENANT_KIND, TenantRecord
from gateway.config.rulebook import RULES
from gateway.demo.processes import Child, DemoFailed, pdd
from tests.chaos.engine import CHUNK_TOKENS, MODEL
from tests.valkey import open_documents

SECRET = "0123456789abcdef0123"
GOOD = ("ada", "bob", "cyd", "dee")
HOSTILE = "eve"
RULES_OF_ALL: dict[str, Any] = {
    "direct_wan_bound_s": 0,
    "pipelines": ["relay", "direct"],
    "handoff": {"mode": "catch_up"},
    "relay": {"transfer_retry_backoff_s": 0.2, "transfer_retry_backoff_max_s": 1.0, "keepalive_s": 5.0},
}
HOSTILE_LIMITS = {"concurrent": 8, "requests_per_min": 1200}
LINK_MBIT = 60.0
START_S = 60.0
STORE_BYTES = 64 << 20


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass(slots=True)
class Part:
    """One process. ``worst_rss_kb``: the most that any of its lives had."""

    kind: str
    name: str
    child: Child
    kills: int = 0
    worst_rss_kb: int = 0

    async def kill(self) -> None:
        """End it as a crash would."""
        self.note_memory()
        self.kills += 1
        self.child.kill()
        await self.child.wait()

    async def restart(self) -> None:
        """Start it again, at the same address."""
        await self.child.stop()
        for _ in range(20):
            with contextlib.suppress(DemoFailed):
                await self.child.start()
                return
            await asyncio.sleep(0.2)
        raise DemoFailed(f"{self.name} does not start again")

    def freeze(self) -> None:
        """Let it hang."""
        os.kill(self.child.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        os.kill(self.child.pid, signal.SIGCONT)

    def note_memory(self) -> None:
        """Look at the most memory that it had so far."""
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{self.child.pid}/status").read_text().splitlines():
                if line.startswith("VmHWM:"):
                    self.worst_rss_kb = max(self.worst_rss_kb, int(line.split()[1]))


@dataclass(slots=True)
class Store:
    """A Valkey server."""

    kind: str
    name: str
    server: EmbeddedValkey
    kills: int = 0


@dataclass(slots=True)
class Day:
    """Everything that runs."""

    parts: list[Part]
    stores: dict[str, Store]
    gateways: list[Part]
    bridges: list[Part]
    admin_urls: list[str]
    wan_url: str
    keys: dict[str, str]
    started_s: float = field(default_factory=time.monotonic)

    def gateway_urls(self) -> list[str]:
        """Where clients ask."""
        return [part.child.url for part in self.gateways]

    @property
    def kills(self) -> int:
        """How many parts were killed so far."""
        return sum(part.kills for part in self.parts) + sum(store.kills for store in self.stores.values())


def engine_part(name: str, role: str, store: str, chunk_s: float, chunk_ids: int, folder: Path) -> Part:
    """An engine at a port of its own."""
    command = [sys.executable, "-m", "tests.chaos.engine", "--role", role, "--port", str(free_port())]
    command += ["--store", store, "--chunk-s", str(chunk_s), "--chunk-ids", str(chunk_ids)]
    return Part(role, name, Child(name, folder, command, START_S))


def bridge_part(name: str, source: str, dest: str, folder: Path) -> Part:
    """A bridge at a port of its own."""
    listen = f"127.0.0.1:{free_port()}"
    command = pdd("bridge", "--source", source, "--dest", dest, "--listen", listen, "--silence-s", "3")
    return Part("bridge", name, Child(name, folder, command, START_S))


def settings_of(engines: list[Part], bridges: list[Part], state: str, admin: str) -> dict[str, Any]:
    """One gateway's configuration: P and RLD in the east, an MD each in the west and in the north."""
    regions = {"md1": "west", "md2": "north"}
    return {
        "models": [{"name": MODEL, "path": str(MODEL_DIR)}],
        "redis_url": state,
        "engines": [
            {
                "id": part.name,
                "role": part.kind,
                "model": MODEL,
                "region": regions.get(part.name, "east"),
                "url": part.child.url,
                "max_running": 2000,
            }
            for part in engines
        ],
        "links": [
            {"source": "east", "dest": dest, "bridge": part.child.url, "chunk_tokens": CHUNK_TOKENS}
            | {"rate_mbit": LINK_MBIT}
            for dest, part in zip(("west", "north"), bridges, strict=True)
        ],
        "auth": {"secret_env": "CHAOS_SECRET"},
        "admin": {"listen": admin},
        "canary_interval_s": 0,
        "drain_s": 1,
        "rules": RULES_OF_ALL,
    }


async def admit_tenants(state: str) -> dict[str, str]:
    """Make five tenants with a key each; the hostile one has limits."""
    keys = {}
    async with open_documents(state) as store:
        for name in (*GOOD, HOSTILE):
            key = make_key()
            await store.put(TENANT_KIND, name, TenantRecord(), author="chaos")
            record = KeyRecord(tenant=name, hash=hash_key(SECRET.encode(), key), created_s=0)
            await store.put(KEY_KIND, key.id, record, author="chaos")
            keys[name] = str(key)
        await store.put(RULES, HOSTILE, {"limits": HOSTILE_LIMITS}, author="chaos")
    return keys


@asynccontextmanager
async def open_day(folder: Path, chunk_s: float, chunk_ids: int) -> AsyncIterator[Day]:
    """Start everything; end it with the block."""
    os.environ["CHAOS_SECRET"] = SECRET
    async with AsyncExitStack() as stack:
        stores = {}
        for name in ("state", "east", "west", "north"):
            bound = None if name == "state" else STORE_BYTES
            policy = "noeviction" if name == "state" else "allkeys-lru"
            server = await stack.enter_async_context(EmbeddedValkey(max_memory_bytes=bound, policy=policy))
            stores[name] = Store("state" if name == "state" else "store", name, server)
        east = urlsplit(stores["east"].server.url).netloc
        ports = [free_port(), free_port()]
        routes = [f"--route=127.0.0.1:{port}={east}" for port in ports]
        wan = Child("wan", folder, pdd("wan", *routes, f"--rate-mbit={LINK_MBIT}", "--delay-ms=10"), START_S)
        stack.push_async_callback(wan.stop)
        await wan.start()
        plan = (("p1", "P"), ("p2", "P"), ("rld1", "RLD"), ("rld2", "RLD"), ("md1", "MD"), ("md2", "MD"))
        homes = {"md1": "west", "md2": "north"}
        engines = [
            engine_part(name, role, stores[homes.get(name, "east")].server.url, chunk_s, chunk_ids, folder)
            for name, role in plan
        ]
        bridges = [
            bridge_part(f"bridge-{dest}", f"redis://127.0.0.1:{port}", stores[dest].server.url, folder)
            for dest, port in zip(("west", "north"), ports, strict=True)
        ]
        for part in (*engines, *bridges):
            stack.push_async_callback(part.child.stop)
        await asyncio.gather(*(part.child.start() for part in (*engines, *bridges)))
        keys = await admit_tenants(stores["state"].server.url)
        gateways, admin_urls = [], []
        for number in (1, 2):
            admin = f"127.0.0.1:{free_port()}"
            config = folder / f"gateway{number}.yaml"
            settings = settings_of(engines, bridges, stores["state"].server.url, admin)
            await asyncio.to_thread(config.write_text, yaml.safe_dump(settings))
            command = pdd("serve", "--config", str(config), "--listen", f"127.0.0.1:{free_port()}")
            part = Part("gateway", f"gateway{number}", Child(f"gateway{number}", folder, command, START_S))
            stack.push_async_callback(part.child.stop)
            gateways.append(part)
            admin_urls.append(f"http://{admin}")
        await asyncio.gather(*(part.child.start() for part in gateways))
        yield Day([*engines, *bridges, *gateways], stores, gateways, bridges, admin_urls, wan.url, keys)
