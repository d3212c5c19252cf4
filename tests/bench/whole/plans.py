"""The gateways that are measured, as processes before one scripted engine: ours in each plan, nginx, a raw copy."""

import asyncio
import contextlib
import os
import shutil
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml
from tokenizers import Tokenizer

from backends.transport.valkey import EmbeddedValkey
from gateway.demo.processes import Child, pdd
from tests.bench.whole.engine import CONTEXT_TOKENS, MODEL
from tests.gateway.model_dir import make_model_dir

START_S = 90.0
OTHER_MODEL = "passed-on"
WORD = " the"
ROLES = {"passthrough": ("MD",), "direct": ("P", "MD"), "relay": ("P", "RLD", "MD")}
NGINX = """
daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/nginx.log;
events {{ worker_connections 4096; }}
http {{
  access_log off; client_max_body_size 64m; client_body_buffer_size 2m; keepalive_requests 10000000;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  upstream engine {{ server 127.0.0.1:{engine}; keepalive 2000; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
    }}
  }}
}}
"""


@dataclass(frozen=True, slots=True)
class Measured:
    """A gateway that runs. ``model``: what requests must name there."""

    port: int
    pid: int
    model: str = MODEL

    def cpu_us(self) -> float:
        """CPU that its processes had so far, threads that live."""
        return sum(_thread_us(pid) for pid in _family(self.pid))


def _family(pid: int) -> list[int]:
    found = [pid]
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in children.read_text().split():
            found += _family(int(child))
    return found


def _thread_us(pid: int) -> float:
    total = 0.0
    for schedule in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):
            total += int(schedule.read_text().split()[0]) / 1e3
    return total


@dataclass(frozen=True, slots=True)
class Bench:
    """What stands around the gateways."""

    stack: AsyncExitStack
    folder: Path
    engine_port: int
    redis_url: str
    model_dir: Path

    async def start(self, name: str, command: list[str], model: str = MODEL) -> Measured:
        """Run a process that tells where it listens."""
        child = Child(name, self.folder, command, START_S)
        self.stack.push_async_callback(child.stop)
        await child.start()
        return Measured(urlsplit(child.url).port or 0, child.pid, model)

    async def open_plan(
        self, plan: str, database: int, *options: str, settings: Mapping[str, Any] | None = None
    ) -> Measured:
        """Run ours so that every request takes one plan; ``database``: of the shared state, one for each."""
        config = self.folder / f"gateway{database}.yaml"
        await asyncio.to_thread(
            config.write_text, yaml.safe_dump(self._settings(plan, database) | dict(settings or {}))
        )
        command = pdd("serve", "--config", str(config), "--listen", "127.0.0.1:0", *options)
        return await self.start(f"gateway{database}", command, OTHER_MODEL if plan == "upstream" else MODEL)

    async def open_raw(self) -> Measured:
        """Run the copy."""
        return await self.start("raw", [sys.executable, "-m", "tests.bench.whole.raw", str(self.engine_port)])

    async def open_nginx(self) -> Measured | None:
        """Run nginx; None: it is not installed."""
        binary = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
        if binary is None:
            return None
        port, config = free_port(), self.folder / "nginx.conf"
        text = NGINX.format(folder=self.folder, engine=self.engine_port, port=port)
        await asyncio.to_thread(config.write_text, text)
        process = await asyncio.create_subprocess_exec(binary, "-c", str(config), "-e", str(self.folder / "nginx.log"))
        self.stack.push_async_callback(process.wait)
        self.stack.callback(process.terminate)
        await wait_for(port)
        return Measured(port, process.pid)

    def _settings(self, plan: str, database: int) -> dict[str, Any]:
        url = f"http://127.0.0.1:{self.engine_port}"
        settings: dict[str, Any] = {
            "models": [{"name": MODEL, "path": str(self.model_dir), "kv_bytes_per_token": 262144}],
            "redis_url": f"{self.redis_url}/{database}",
            "engines": [
                {"id": role.lower(), "role": role, "model": MODEL, "region": "b" if role == "MD" else "a", "url": url}
                | {"max_running": 8192}
                for role in ROLES.get(plan, ("MD",))
            ],
            "admission": {"max_running": 100_000, "max_waiting": 100_000},
            "canary_interval_s": 0,
        }
        if plan == "direct":
            settings["engines"] = [engine | {"region": "a"} for engine in settings["engines"]]
        elif plan == "relay":
            settings["links"] = [{"source": "a", "dest": "b", "bridge": url, "chunk_tokens": 16, "rate_mbit": 8}]
            settings["rules"] = {"pipelines": ["relay"]}
        elif plan == "upstream":
            settings["upstreams"] = [{"id": "u", "url": url, "models": [OTHER_MODEL], "max_running": 8192}]
        return settings


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def wait_for(port: int) -> None:
    """Wait until something listens."""
    async with asyncio.timeout(START_S):
        while True:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                return
            await asyncio.sleep(0.05)


def make_prompt(model_dir: Path, tokens: int) -> str:
    """Return a text of so many tokens."""
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    sentence = "The quick brown fox jumps over the lazy dog, and the dog does not mind. "
    times = tokens // len(tokenizer.encode(sentence, add_special_tokens=False).ids)
    return sentence * (times + 1)


@asynccontextmanager
async def open_bench(folder: Path) -> AsyncIterator[Bench]:
    """Run the engine and the shared state; all that was started ends with the block."""
    model_dir = await asyncio.to_thread(make_model_dir, folder / "model", context_tokens=CONTEXT_TOKENS)
    tokenizer = await asyncio.to_thread(Tokenizer.from_file, str(model_dir / "tokenizer.json"))
    token = tokenizer.encode(WORD, add_special_tokens=False).ids[-1]
    async with EmbeddedValkey() as valkey, AsyncExitStack() as stack:
        bench = Bench(stack, folder, 0, valkey.url, model_dir)
        engine = await bench.start("engine", [sys.executable, "-m", "tests.bench.whole.engine", str(token)])
        yield Bench(stack, folder, engine.port, valkey.url, model_dir)
