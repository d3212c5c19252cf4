"""``pdd serve --workers``: how workers are kept, what each may hold, and that they are one gateway to clients."""

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
import yaml

from gateway.cli.workers import BAD_SETTINGS, STEADY_S, Supervisor, share_settings
from gateway.config.rulebook import RULES
from gateway.config.settings import parse_settings
from tests.fakes.engine import FakeEngine
from tests.fakes.gates import HoldGate
from tests.fakes.script import Script
from tests.gateway.test_tenancy import BASE
from tests.valkey import open_documents, run_valkey


class FakeProcess:
    """Ends when it is told to, with 0, or when the test says so."""

    def __init__(self) -> None:
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def terminate(self) -> None:
        if not self.ended.done():
            self.ended.set_result(0)

    async def wait(self) -> int:
        return await self.ended


class Team(Supervisor):
    """Workers that a test ends; pauses are noted, and end when the test looks at them."""

    def __init__(self, count: int) -> None:
        self.now_s = 0.0
        self.started: asyncio.Queue[tuple[int, FakeProcess]] = asyncio.Queue()
        self.pauses: list[float] = []
        super().__init__(self._start, count, clock=lambda: self.now_s)

    async def pause(self, wait_s: float) -> None:
        self.pauses.append(wait_s)

    async def _start(self, number: int) -> Process:
        process = FakeProcess()
        self.started.put_nowait((number, process))
        return cast(Process, process)


async def test_a_worker_that_ends_starts_again_after_longer_and_longer_pauses() -> None:
    """Each early end doubles the pause up to a bound, a steady life begins anew, and the others are left alone."""
    team = Team(2)
    running = asyncio.create_task(team.run())
    (_, first), (_, second) = [await team.started.get() for _ in range(2)]
    for lived_s in (0, 0, 0, 0, 0, 0, 0, STEADY_S, 0):
        team.now_s += lived_s
        first.ended.set_result(-signal.SIGKILL)
        number, first = await team.started.get()
        assert number == 0
    assert team.pauses == [0.5, 1, 2, 4, 8, 16, 30, 0.5, 1]
    assert not second.ended.done()
    team.stop()
    assert await running == 0 and second.ended.result() == 0


async def test_settings_that_no_worker_can_start_with_end_all() -> None:
    """A worker that refuses the settings in its first life ends the command with its status; a later one does not."""
    team = Team(2)
    running = asyncio.create_task(team.run())
    (_, first), (_, second) = [await team.started.get() for _ in range(2)]
    first.ended.set_result(1)
    _, first = await team.started.get()
    first.ended.set_result(BAD_SETTINGS)
    await team.started.get()
    second.ended.set_result(BAD_SETTINGS)
    assert await running == BAD_SETTINGS


async def test_a_worker_that_does_not_end_well_is_told_of() -> None:
    """When all were told to end, the status is that of the worst of them."""
    team = Team(2)
    running = asyncio.create_task(team.run())
    (_, first), (_, second) = [await team.started.get() for _ in range(2)]
    first.terminate = lambda: None  # type: ignore[method-assign]
    team.stop()
    first.ended.set_result(-signal.SIGKILL)
    assert await running == 1 and second.ended.result() == 0


def test_what_a_process_holds_is_divided() -> None:
    """All workers together hold no more than one process would, and each takes the largest body that is allowed."""
    limits = {"max_connections": 1000, "max_bodies_bytes": 300, "max_body_bytes": 200}
    admission = {"max_running": 7, "max_waiting": 10}
    settings = share_settings(parse_settings(BASE | {"workers": 3, "limits": limits, "admission": admission}))
    assert (settings.limits.max_connections, settings.limits.max_bodies_bytes) == (334, 200)
    assert (settings.admission.max_running, settings.admission.max_waiting) == (3, 4)
    assert share_settings(parse_settings(BASE | {"workers": 3})).admission.max_running is None


class Served:
    """``pdd serve --workers 2``."""

    def __init__(self, process: Process, url: str) -> None:
        self.process = process
        self.url = url

    async def pids(self) -> set[int]:
        """Processes of the workers that answer."""
        async with httpx.AsyncClient(base_url=self.url, timeout=10) as client:
            told = (await client.get("/admin/rules")).json()["processes"]
        return {one["pid"] for one in told}

    async def until_workers(self, found: Callable[[set[int]], bool]) -> set[int]:
        """Wait until the workers' processes are as ``found`` says."""
        while not found(pids := await self.pids()):  # noqa: ASYNC110  # other processes change it
            await asyncio.sleep(0.1)
        return pids


@asynccontextmanager
async def serve(config: Path, settings: dict[str, Any]) -> AsyncIterator[Served]:
    """Run it."""
    await asyncio.to_thread(config.write_text, yaml.safe_dump(settings))
    command = [sys.executable, "-m", "gateway", "serve", "--config", str(config), "--listen", "127.0.0.1:0"]
    process = await asyncio.create_subprocess_exec(*command, "--workers", "2", "--die-with-parent", stdout=PIPE)
    assert process.stdout is not None
    try:
        lines = [(await process.stdout.readline()).decode() for _ in range(2)]
        assert sorted(line[:9] for line in lines) == ["worker 0 ", "worker 1 "]
        yield Served(process, lines[0].split()[-1])
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            await process.communicate()


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_workers_are_one_gateway(tmp_path: Path, long_model_dir: Path) -> None:
    """Both serve at one address; rules reach both; one that is killed is replaced meanwhile; the end drains all."""
    hold = HoldGate()
    async with run_valkey() as redis_url, FakeEngine("md1", served_model="m") as engine:
        settings = {
            "models": [{"name": "m", "path": str(long_model_dir), "kv_bytes_per_token": 1}],
            "engines": [{"id": "md1", "role": "MD", "model": "m", "region": "a", "url": engine.url}],
            "redis_url": redis_url,
            "canary_interval_s": 0,
            "drain_s": 20,
        }
        async with serve(tmp_path / "gateway.yaml", settings) as served:
            await check_both_serve(served)
            await check_rules_reach_both(served, redis_url)
            before = await served.until_workers(lambda pids: len(pids) == 2)
            killed = min(before)
            os.kill(killed, signal.SIGKILL)
            await until_gone(killed)
            await ask(served)
            after = await served.until_workers(lambda pids: killed not in pids and len(pids) == 2)
            assert len(before & after) == 1
            engine.script = Script(holds={3: hold})
            status, events = await drain_amid_stream(served, hold)
        assert (status, events[-1]) == (0, "[DONE]")


async def ask(served: Served) -> str:
    """Be answered, over a connection of its own; the request's id."""
    async with httpx.AsyncClient(base_url=served.url, timeout=30) as client:
        answer = await client.post("/v1/completions", json={"model": "m", "prompt": "Hello", "max_tokens": 2})
    assert answer.status_code == 200, answer.text
    return answer.headers["x-request-id"]


async def check_both_serve(served: Served) -> None:
    """Requests go to both, and whoever is asked tells of all of them."""
    ids: list[str] = []
    busy: set[str] = set()
    while len(busy) < 2:
        ids += await asyncio.gather(*(ask(served) for _ in range(8)))
        async with httpx.AsyncClient(base_url=served.url, timeout=10) as client:
            page = (await client.get("/metrics")).text
        counts = re.findall(r'^pdd_requests_total\{worker="(\d)",.* (\S+)$', page, re.MULTILINE)
        assert sum(float(count) for _, count in counts) == len(ids)
        busy = {worker for worker, _ in counts}
    async with httpx.AsyncClient(base_url=served.url, timeout=10) as client:
        listed = (await client.get("/admin/requests", params={"limit": 1000})).json()["requests"]
    assert {one["request_id"] for one in listed} == set(ids)
    for request_id in ids:
        async with httpx.AsyncClient(base_url=served.url, timeout=10) as client:
            found = await client.get(f"/admin/requests/{request_id}")
            assert found.json()["request_id"] == request_id


async def check_rules_reach_both(served: Served, redis_url: str) -> None:
    """A document is in force in both before long."""
    async with open_documents(redis_url) as store:
        revision = (await store.put(RULES, "default", {"direct_wan_bound_s": 3}, author="test")).version
    assert revision == 1
    async with httpx.AsyncClient(base_url=served.url, timeout=10) as client:
        while True:
            told = (await client.get("/admin/rules")).json()["processes"]
            if len(told) == 2 and all(one["revision"] >= 1 for one in told):
                return
            await asyncio.sleep(0.1)


async def until_gone(pid: int) -> None:
    """Wait until a process is no more: until then the kernel may give its listener connections, which die with it."""
    with contextlib.suppress(ProcessLookupError):
        while True:
            os.kill(pid, 0)
            await asyncio.sleep(0.01)


async def drain_amid_stream(served: Served, hold: HoldGate) -> tuple[int | None, list[str]]:
    """Tell the command to end while a stream runs; its status, and the stream's events."""
    body = {"model": "m", "prompt": "Hello there", "max_tokens": 8, "stream": True, "ignore_eos": True}
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as client:
        async with client.stream("POST", "/v1/completions", json=body) as answer:
            await hold.arrivals()
            served.process.terminate()
            await until_refused(served.url)
            hold.release()
            events = [line.removeprefix("data: ") async for line in answer.aiter_lines() if line]
    await served.process.communicate()
    assert json.loads(events[0])["object"] == "text_completion"
    return served.process.returncode, events


async def until_refused(url: str) -> None:
    """Wait until nobody listens any more."""
    port = int(url.rpartition(":")[2])
    with contextlib.suppress(OSError):
        while True:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            await asyncio.sleep(0.05)
