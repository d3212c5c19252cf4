"""Real engine processes over a real store."""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from backends.engines.reference.model import ModelShape, read_shape
from backends.engines.reference.service import choose_size
from backends.engines.reference.settings import ReferenceSettings
from tests.backends.engines.reference.test_model import by_transformers, random_prompt
from tests.backends.engines.reference.test_server import ids, stream
from tests.backends.engines.reference.test_settings import parse
from tests.valkey import run_valkey

START_TIMEOUT_S = 150.0


def settings(directory: Path, *options: str) -> ReferenceSettings:
    """Settings of a main engine."""
    return parse("--role", "main", "--model", str(directory), *options)


def test_the_pool_fits_the_memory_bound_and_bounds_the_context(llama: Path) -> None:
    """Blocks follow from MiB and KV bytes per token; the context from the model, the pool and the option."""
    shape = read_shape(llama, "float32")
    assert shape.kv_bytes_per_token == 2 * 2 * 2 * 16 * 4
    size = choose_size(settings(llama, "--kv-cache-mib", "1"), shape)
    assert (size.blocks, size.context_tokens) == (128, 2048)
    assert choose_size(settings(llama, "--max-model-len", "100"), shape).context_tokens == 100


@pytest.mark.parametrize("options", [("--max-model-len", "4096"), ("--kv-cache-mib", "1", "--block-size", "64")])
def test_a_context_that_cannot_be_held_is_refused(llama: Path, options: tuple[str, ...]) -> None:
    """The message names the option."""
    shape = read_shape(llama, "float32")
    wide = ModelShape(64, 64, 1024, 320, 2048, frozenset(), shape.dtype)
    with pytest.raises(ValueError, match=r"--max-model-len|--kv-cache-mib"):
        choose_size(settings(llama, *options), shape if "4096" in options else wide)


@asynccontextmanager
async def run_process(model: Path, role: str, *options: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """An engine process and its URL; killed in the end if it still runs."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "backends.engines.reference.command", "--role", role, "--model", str(model)),
        *("--served-model-name", "tiny", "--die-with-parent", *options),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(START_TIMEOUT_S):
            line = (await process.stdout.readline()).decode()
        assert line.startswith("listening on http://127.0.0.1:"), line
        yield process, line.split()[-1]
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def complete(url: str, prompt: list[int], max_tokens: int, **fields: Any) -> tuple[list[int], int]:
    """Greedy ids of a streamed leg, and its cached tokens."""
    options = {"temperature": 0, "ignore_eos": True, "stream_options": {"include_usage": True}}
    events = await stream(url, prompt=prompt, max_tokens=max_tokens, **options, **fields)
    return ids(events), events[-2]["usage"]["prompt_tokens_details"]["cached_tokens"]


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_a_split_answer_equals_an_unsplit_one(llama: Path) -> None:
    """P's token, a slow relay's on P's KV, and a main engine's after an extend are the ids of the plain model."""
    prompt = random_prompt(700)
    wanted = by_transformers(llama, prompt, 24)
    async with run_valkey() as store:
        options = ("--kv-store", store)
        async with (
            run_process(llama, "prefill", *options) as (prefill, p_url),
            run_process(llama, "relay", *options, "--min-step-ms", "30") as (relay, r_url),
        ):
            first, _ = await complete(p_url, prompt, 1)
            began_s = time.monotonic()
            eager, cached = await complete(r_url, prompt + first, 10)
            assert cached == 640
            assert time.monotonic() - began_s >= 9 * 0.030
            extended, extend_cached = await complete(r_url, prompt + first + eager, 13)
            assert extend_cached >= 704
            assert first + eager + extended == wanted
            salted, cached = await complete(r_url, prompt, 2, cache_salt="other")
            assert (salted, cached) == (wanted[:2], 0)
            await leave_at_once(r_url, prompt[::-1])
            for process in (prefill, relay):
                process.send_signal(signal.SIGTERM)
                async with asyncio.timeout(20):
                    assert await process.wait() == 0


async def leave_at_once(url: str, prompt: list[int]) -> None:
    """Start a long answer, close the connection after its first chunk, and wait until the engine is idle."""
    body = {"prompt": prompt, "max_tokens": 1000, "stream": True, "ignore_eos": True}
    async with httpx.AsyncClient(verify=False) as client:
        async with client.stream("POST", f"{url}/v1/completions", json=body) as response:
            json.loads((await anext(response.aiter_lines()))[6:])
        async with asyncio.timeout(1):
            while (
                'vllm:num_requests_running{engine="0",model_name="tiny"} 0.0'
                not in (await client.get(f"{url}/metrics")).text
            ):
                pass


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_an_engine_ends_with_its_parent(llama: Path, tmp_path: Path) -> None:
    """``--die-with-parent``: a killed parent leaves no engine behind."""
    script = (
        "import subprocess, sys\n"
        "engine = subprocess.Popen([sys.executable, '-m', 'backends.engines.reference.command', *sys.argv[1:]],"
        " stdout=subprocess.PIPE, text=True)\n"
        "print(engine.stdout.readline(), flush=True)\n"
        "engine.wait()\n"
    )
    parent = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-c", script, "--role", "main", "--model", str(llama), "--die-with-parent"),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert parent.stdout is not None
        async with asyncio.timeout(START_TIMEOUT_S):
            line = (await parent.stdout.readline()).decode()
    finally:
        parent.kill()
        await parent.wait()
    host, port = line.split()[-1].removeprefix("http://").split(":")
    async with asyncio.timeout(10):
        while await is_listening(host, int(port)):
            pass


async def is_listening(host: str, port: int) -> bool:
    """Whether a connection is accepted."""
    try:
        _, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    writer.close()
    await writer.wait_closed()
    return True
