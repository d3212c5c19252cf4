"""``python -m tests.bench.trace``: the walk of one request and of one token through the gateway's own code, counted.

A whole gateway (its HTTP edge, tokenizer, shared index in a private Valkey, policies and relay) answers one chat of
``TOKENS`` tokens over engines and a bridge that are scripted here: P's token, RLD's up to the middle, MD's from there.
Engines give the next token once the client has read the last, so each travels alone, as in a stream at reading pace.
Counted are the Python calls (a resumed coroutine is one) of functions in ``gateway``, ``backends`` and ``policies``.
A token's calls are those of functions that most tokens call, its forms the classes of which each token has an object of
its own. A request's are all others, less what an idle gateway does in the same time.

With TRACE_JSON=FILE in the environment the figures are written there as one JSON object.
"""

import argparse
import asyncio
import json
import math
import os
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
from tokenizers import Tokenizer

from backends.types import LinkState
from gateway.app import open_gateway
from gateway.config.settings import parse_settings
from tests.fakes.engine import FakeEngine, answer
from tests.fakes.gates import HoldGate
from tests.fakes.script import Script
from tests.fakes.server import AppServer
from tests.gateway.http.edge_server import EdgeServer
from tests.gateway.model_dir import make_model_dir

ROOT = Path(__file__).resolve().parents[2]
OWN = tuple(f"{ROOT / name}{os.sep}" for name in ("gateway", "backends", "policies"))
PACKAGES = ("gateway.", "backends.", "policies.")
ROLES = {"p1": "P", "rld1": "RLD", "md1": "MD"}
TOKENS = 400
MIDDLE = TOKENS // 2
WINDOW = 100
STARTS = (MIDDLE // 4, MIDDLE + MIDDLE // 4)
"""Where the windows begin, one of RLD's tokens and one of MD's, in which nothing but tokens happens."""
IDLE_S = 4.0
ROUNDS = 3
RULES: dict[str, Any] = {"pipelines": ["relay"], "handoff": {"mode": "one_shot", "reserve_s": 0}}
LINK = LinkState(rate_bytes_per_s=1e6, queued_bytes=0, rtt_s=0.03, up=True, wan_bytes_total=0)


Calls = Counter[tuple[str, str]]
"""How often functions were called, by file and name."""


@dataclass(slots=True)
class Walk:
    """What was called since the last ``take``, and the objects that came out of it."""

    calls: Calls = field(default_factory=Counter)
    made: dict[type, dict[int, object]] = field(default_factory=dict)

    def take(self) -> tuple[Calls, dict[type, dict[int, object]]]:
        """Return what was seen, and begin anew."""
        seen = self.calls, self.made
        self.calls, self.made = Counter(), {}
        return seen

    def see(self, frame: FrameType, event: str, value: object) -> None:
        """Take one event of the interpreter's profiler."""
        code = frame.f_code
        if event == "call" and code.co_filename == "<string>" and code.co_name == "__init__":
            self._keep(frame.f_locals.get("self"))  # dataclasses write theirs
        elif code.co_filename.startswith(OWN):
            if event == "call":
                self.calls[code.co_filename.removeprefix(f"{ROOT}{os.sep}"), code.co_qualname] += 1
            elif event == "return":
                for part in (value, *frame.f_locals.values()):
                    self._keep(part)

    def _keep(self, value: object) -> None:
        kind = type(value)
        if kind.__module__.startswith(PACKAGES):
            self.made.setdefault(kind, {})[id(value)] = value


class Bridge(AppServer):
    """Tells of its link, and completes a transfer when ``arrived`` is set."""

    def __init__(self) -> None:
        super().__init__(self._app)
        self.arrived = asyncio.Event()

    async def _app(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["path"] == "/v1/link":
            await answer(send, 200, msgspec.json.encode(LINK))
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for state in ("open", "complete"):
            counts = {"chunks_total": 4, "chunks_done": 4, "chunks_present": 0, "wan_bytes": 4096}
            line = json.dumps({"state": state, **counts}).encode() + b"\n"
            await send({"type": "http.response.body", "body": line, "more_body": state == "open"})
            await self.arrived.wait()


@dataclass(frozen=True, slots=True)
class Stack:
    """What runs. ``paces`` let RLD and MD give their next token."""

    server: EdgeServer
    engines: dict[str, FakeEngine]
    bridge: Bridge
    paces: dict[str, HoldGate]


@asynccontextmanager
async def open_stack(folder: Path) -> AsyncIterator[Stack]:
    """Run engines, bridge and gateway."""
    model_dir = await asyncio.to_thread(make_model_dir, folder)
    async with AsyncExitStack() as stack:
        bridge = await stack.enter_async_context(Bridge())
        tokenizer = await asyncio.to_thread(Tokenizer.from_file, str(model_dir / "tokenizer.json"))
        word = tokenizer.encode("the", add_special_tokens=False).ids[0]
        engines = {
            name: await stack.enter_async_context(FakeEngine(name, model=lambda _: word, served_model="tiny"))
            for name in ROLES
        }
        settings = parse_settings(
            {
                "models": [{"name": "tiny", "path": str(model_dir), "kv_bytes_per_token": 4096}],
                "engines": [
                    {"id": name, "role": role, "model": "tiny", "region": "ab"[role == "MD"], "url": engines[name].url}
                    for name, role in ROLES.items()
                ],
                "links": [{"source": "a", "dest": "b", "bridge": bridge.url, "chunk_tokens": 64}],
                "rules": RULES,
                "canary_interval_s": 0,
                "health_interval_s": 3600,
            }
        )
        gateway = await stack.enter_async_context(open_gateway(settings))
        server = await stack.enter_async_context(EdgeServer(gateway.app))
        yield Stack(server, engines, bridge, {"rld1": HoldGate(), "md1": HoldGate()})


@dataclass(frozen=True, slots=True)
class Figures:
    """What one answer took."""

    token: Calls
    """Of one window, for as many tokens."""
    forms: list[str]
    request: Calls


async def watch_idle(walk: Walk) -> Calls:
    """What the gateway does in ``IDLE_S`` in which nobody asks."""
    walk.take()
    sys.setprofile(walk.see)
    await asyncio.sleep(IDLE_S)
    sys.setprofile(None)
    return walk.take()[0]


async def ask(stack: Stack, idle: Calls) -> Figures:
    """Ask for one relayed answer."""
    walk, loop = Walk(), asyncio.get_running_loop()
    started_s = loop.time()
    stack.bridge.arrived.clear()
    for name, pace in stack.paces.items():
        stack.engines[name].scripts.append(Script(step=pace))
    body = {"model": "tiny", "stream": True, "max_tokens": TOKENS, "ignore_eos": True}
    body["messages"] = [{"role": "user", "content": "Hello there. " * 40}]
    data = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", stack.server.port)
    total: Calls = Counter()
    windows = []
    seen = 0
    sys.setprofile(walk.see)
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(data), data))
    while (line := await reader.readline()) != b"data: [DONE]\n":
        if b'"content":' not in line or b'"role":' in line:
            continue
        seen += 1
        if seen in STARTS:
            total += walk.take()[0]
        elif seen - WINDOW in STARTS:
            windows.append(walk.take())
            total += windows[-1][0]
        if seen == MIDDLE:
            stack.bridge.arrived.set()
            await stack.engines["md1"].calls_made(1)
        stack.paces["rld1" if seen < MIDDLE else "md1"].release()
    writer.close()
    await asyncio.wait(stack.server.state.tasks or {asyncio.create_task(asyncio.sleep(0))})
    sys.setprofile(None)
    total += walk.take()[0]
    stack.engines["md1"].calls.clear()
    assert seen == TOKENS, seen
    calls, made = max(windows, key=lambda window: window[0].total())
    token: Calls = Counter({place: count for place, count in calls.items() if count >= WINDOW / 2})
    for place, count in token.items():
        total[place] -= count * TOKENS // WINDOW
    for place, times in idle.items():
        total[place] -= math.ceil(times / IDLE_S * (loop.time() - started_s))
    forms = sorted(kind.__name__ for kind, objects in made.items() if len(objects) >= WINDOW)
    return Figures(token, forms, +total)


async def measure(shows_all: bool) -> dict[str, float]:
    """Ask a few times, after one answer that fills caches; return the medians."""
    with tempfile.TemporaryDirectory() as folder:
        async with open_stack(Path(folder)) as stack:
            await ask(stack, Counter())
            idle = await watch_idle(Walk())
            found = [await ask(stack, idle) for _ in range(ROUNDS)]
    if shows_all:
        show("one token", found[0].token, WINDOW)
        print("forms of a token:", ", ".join(found[0].forms))
        show("one request", found[0].request, 1)
    return {
        "token_calls": statistics.median(one.token.total() / WINDOW for one in found),
        "token_files": statistics.median(len({file for file, _ in one.token}) for one in found),
        "token_forms": statistics.median(len(one.forms) for one in found),
        "request_calls": statistics.median(one.request.total() for one in found),
        "request_files": statistics.median(
            len({place[0] for place in one.request if place not in idle}) for one in found
        ),
    }


def show(title: str, calls: Calls, times: int) -> None:
    """Print functions by how often they are called."""
    print(f"-- {title}")
    for (file, name), count in calls.most_common():
        print(f"{count / times:8.2f}  {file}  {name}")


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.trace", description="Count a request's walk.")
    parser.add_argument("--all", action="store_true", help="list the functions, too")
    figures = asyncio.run(measure(parser.parse_args().all))
    for name, value in figures.items():
        print(f"{name:16} {value:8,.1f}")
    target = os.environ.get("TRACE_JSON")
    if target:
        Path(target).write_bytes(msgspec.json.format(msgspec.json.encode(figures)) + b"\n")


if __name__ == "__main__":
    main()
