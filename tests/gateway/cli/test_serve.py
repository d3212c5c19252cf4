"""``pdd serve`` as a process: what it refuses to start with, and how it ends."""

import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import httpx
import pytest
import yaml

from gateway.__main__ import main
from gateway.version import VERSION
from tests.fakes.engine import FakeEngine
from tests.fakes.gates import HoldGate
from tests.fakes.script import Script
from tests.gateway.test_tenancy import BASE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]


async def serve(config: Path, *options: str) -> tuple[int | None, str]:
    """Run it to its end; the exit status and what it said."""
    command = [sys.executable, "-m", "gateway", "serve", "--config", str(config), *options]
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
    _, said = await process.communicate()
    return process.returncode, said.decode()


async def test_no_start_without_keys_where_others_can_connect(tmp_path: Path) -> None:
    """Without a secret an address that others can reach is refused, with the key's name and what else may be done."""
    config = tmp_path / "gateway.yaml"
    await asyncio.to_thread(config.write_text, yaml.safe_dump(BASE))
    status, said = await serve(config, "--listen", "0.0.0.0:0")
    assert (status, said.startswith("pdd serve: auth.secret_env: ")) == (2, True)
    assert "auth.open: true" in said


async def test_an_answer_that_outlives_its_time_is_told_so(tmp_path: Path, long_model_dir: Path) -> None:
    """OPS-10, STR-20: after SIGTERM and drain_s a stream ends in an error event, engines are free, the status is 0."""
    hold = HoldGate()
    async with FakeEngine("p1", served_model="m") as prefill, FakeEngine("md1", served_model="m") as main:
        main.script = Script(holds={3: hold})
        engine = {"model": "m", "region": "a"}
        settings = {
            "models": [{"name": "m", "path": str(long_model_dir), "kv_bytes_per_token": 1}],
            "engines": [
                engine | {"id": "p1", "role": "P", "url": prefill.url},
                engine | {"id": "md1", "role": "MD", "url": main.url},
            ],
            "canary_interval_s": 0,
            "drain_s": 1,
        }
        config = tmp_path / "gateway.yaml"
        await asyncio.to_thread(config.write_text, yaml.safe_dump(settings))
        command = [sys.executable, "-m", "gateway", "serve", "--config", str(config), "--listen", "127.0.0.1:0"]
        process = await asyncio.create_subprocess_exec(*command, "--die-with-parent", stdout=PIPE, stderr=PIPE)
        assert process.stdout is not None
        url = (await process.stdout.readline()).decode().split()[-1]
        body = {"model": "m", "prompt": "Hello there", "max_tokens": 50, "stream": True}
        async with httpx.AsyncClient(base_url=url, timeout=30) as client:
            async with client.stream("POST", "/v1/completions", json=body) as answer:
                await hold.arrivals()
                process.terminate()
                events = [line.removeprefix("data: ") async for line in answer.aiter_lines() if line]
        await main.idle()
        await process.communicate()
    assert answer.status_code == 200 and json.loads(events[-1])["error"]["code"] == "shutting_down"
    assert len(events) > 1 and process.returncode == 0


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """``pdd --version`` tells the release."""
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"pdd {VERSION}\n"
