"""Three fake engines, a bridge that only tells of its link, and the configuration of a gateway in front of them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import yaml

from backends.types import LinkState
from gateway.__main__ import main
from gateway.app import Gateway
from gateway.config.settings import parse_settings
from gateway.redis.client import SharedRedis
from tests.fakes.engine import FakeEngine, answer
from tests.fakes.index import KnownIndex
from tests.fakes.server import AppServer

MODEL = "tiny"
ROLES = {"p1": "P", "rld1": "RLD", "md1": "MD"}
KV_BYTES = 100_000
LINK = LinkState(rate_bytes_per_s=1e6, queued_bytes=0, rtt_s=0.03, up=True, wan_bytes_total=0)


async def tell_link(
    scope: dict[str, Any], receive: Callable[[], Awaitable[Any]], send: Callable[[dict[str, Any]], Awaitable[None]]
) -> None:
    """Answer as a bridge that is asked for its link; anything else is an error."""
    known = scope["path"] == "/v1/link"
    await answer(send, 200 if known else 500, msgspec.json.encode(LINK))


@dataclass(frozen=True, slots=True)
class Fleet:
    """What runs, and the folder for files."""

    engines: dict[str, FakeEngine]
    bridge: AppServer
    model_dir: Path
    folder: Path

    def settings(self, **changes: Any) -> dict[str, Any]:
        """The configuration."""
        engines = [
            {
                "id": name,
                "role": ROLES[name],
                "model": MODEL,
                "region": "b" if name == "md1" else "a",
                "url": engine.url,
            }
            for name, engine in self.engines.items()
        ]
        return {
            "models": [{"name": MODEL, "path": str(self.model_dir), "kv_bytes_per_token": KV_BYTES}],
            "engines": engines,
            "links": [{"source": "a", "dest": "b", "bridge": self.bridge.url, "chunk_tokens": 64}],
            "canary_interval_s": 0,  # their scripts know nothing of canaries
        } | changes

    async def write(self, **changes: Any) -> Path:
        """Write the configuration to a file."""
        return await self.put("gateway.yaml", yaml.safe_dump(self.settings(**changes)).encode())

    async def put(self, name: str, content: bytes) -> Path:
        """Write a file."""
        path = self.folder / name
        await asyncio.to_thread(path.write_bytes, content)
        return path

    @asynccontextmanager
    async def gateway(self, hits: dict[str, int], redis: SharedRedis, **changes: Any) -> AsyncIterator[Gateway]:
        """Open a gateway whose index knows ``hits``."""
        settings = parse_settings(self.settings(**changes))
        async with await asyncio.to_thread(Gateway, settings, KnownIndex(hits), redis) as gateway:
            yield gateway

    @property
    def calls(self) -> int:
        """Legs that any engine was asked for."""
        return sum(len(engine.calls) for engine in self.engines.values())


@asynccontextmanager
async def open_fleet(model_dir: Path, folder: Path) -> AsyncIterator[Fleet]:
    """Run the fakes."""
    async with AsyncExitStack() as stack:
        engines = {
            name: await stack.enter_async_context(FakeEngine(name, served_model=MODEL, max_model_len=100_000))
            for name in ROLES
        }
        yield Fleet(engines, await stack.enter_async_context(AppServer(tell_link)), model_dir, folder)


async def pdd(*arguments: str | Path) -> int:
    """Run a command beside this event loop, on which the fakes are; the exit status."""
    return await asyncio.to_thread(main, [str(argument) for argument in arguments])
