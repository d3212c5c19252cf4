"""The check of how engines read chats, against a real vLLM server: shape by shape, and what comes of a difference."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from backends.engines.reference.demo_model import MODEL_DIR
from gateway.app import Gateway, open_gateway
from gateway.config.settings import parse_settings
from gateway.demo.cluster import MODEL, find_free_ports
from gateway.text.shapes import ASK, CHECKED, WEATHER
from tests.e2e.kit import KV_CACHE_BYTES, Group
from tests.fakes.server import AppServer
from tests.gateway.api.talk import TEMPLATE

pytestmark = [
    pytest.mark.slow,
    pytest.mark.e2e,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="session"),
]

WITH_TOOLS = "{%- if tools %}{{ '<|im_start|>system\\n' + (tools | tojson) + '<|im_end|>\\n' }}{% endif -%}"
OTHER = WITH_TOOLS.replace("system\\n", "system\\nTools: ")


def make_dir(folder: Path, template: str) -> Path:
    """The demo model with another template."""
    shutil.copytree(MODEL_DIR, folder)
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    return folder


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def url(python: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """One vLLM server whose template shows thoughts, calls and tools."""
    folder = tmp_path_factory.mktemp("vllm")
    model = make_dir(folder / "model", WITH_TOOLS + TEMPLATE)
    (port,) = find_free_ports(1)
    served = f"http://127.0.0.1:{port}"
    command = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--host", "127.0.0.1"]
    command += ["--served-model-name", MODEL, "--port", str(port), "--enforce-eager", "--max-model-len", "4096"]
    command += ["--dtype", "float32", "--kv-cache-memory-bytes", str(KV_CACHE_BYTES)]
    server = Group("vllm", folder, served, "/health", command)
    await server.start()
    try:
        yield served
    finally:
        await server.stop()


@asynccontextmanager
async def open_before(url: str, path: Path, **model: Any) -> AsyncIterator[tuple[Gateway, httpx.AsyncClient]]:
    """Run a gateway with a model directory before the server, and wait until that was asked."""
    engine = {"model": MODEL, "region": "a", "url": url}
    settings = {
        "models": [{"name": MODEL, "path": str(path), "kv_bytes_per_token": 1, **model}],
        "engines": [{"id": "p", "role": "P", **engine}, {"id": "md", "role": "MD", **engine}],
        "canary_interval_s": 0,
    }
    async with open_gateway(parse_settings(settings)) as gateway:
        await gateway.readings.ask_all()
        async with AppServer(gateway.app) as front, httpx.AsyncClient(base_url=front.url, timeout=60.0) as client:
            yield gateway, client


async def prompt_of(client: httpx.AsyncClient, **fields: Any) -> list[int]:
    """The prompt of a chat through the gateway."""
    body = {"model": MODEL, "messages": [ASK], "max_tokens": 2, "return_token_ids": True, **fields}
    answer = (await client.post("/v1/chat/completions", json=body)).raise_for_status().json()
    return list(answer["prompt_token_ids"])


async def test_every_shape_is_read_alike(url: str, tmp_path: Path) -> None:
    """With the same template each shape has vLLM's ids, and nothing is named."""
    async with open_before(url, make_dir(tmp_path / "same", WITH_TOOLS + TEMPLATE)) as (gateway, client):
        assert gateway.readings.differing(MODEL) == {}
        assert gateway.status.find_degraded() == []
        assert "pdd_reads_otherwise{" not in (await client.get("/metrics")).text


async def test_shapes_that_differ_are_named_and_left_to_vllm(url: str, tmp_path: Path) -> None:
    """With another template for tools just the shapes with tools are named, and their prompts are vLLM's own."""
    theirs = make_dir(tmp_path / "theirs", WITH_TOOLS + TEMPLATE)
    async with open_before(url, theirs) as (_, client):
        wanted = await prompt_of(client, tools=[WEATHER])
    with_tools = {shape for shape, body in CHECKED.items() if body.get("tools")}
    other = make_dir(tmp_path / "other", OTHER + TEMPLATE)
    async with open_before(url, other) as (gateway, client):
        assert gateway.readings.differing(MODEL) == {"p": with_tools, "md": with_tools}
        (line, *_) = gateway.status.find_degraded()
        assert "makes other prompts of chats" in line
        assert await prompt_of(client, tools=[WEATHER]) == wanted
    async with open_before(url, other, reader="local") as (_, client):
        assert await prompt_of(client, tools=[WEATHER]) != wanted
