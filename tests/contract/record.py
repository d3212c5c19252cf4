"""Records what real vLLM and LMCache put on their wires: ``python -m tests.contract.record E2E_VENV [OUT]``."""

import asyncio
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import msgspec
from redis.asyncio import Redis
from zmq.asyncio import Context

from backends.engines.reference.demo_model import MODEL_DIR
from backends.engines.vllm_completions import encode_leg
from backends.engines.vllm_generate import GENERATE_PATH, encode_generate
from backends.kv.subscriber import EventSource, EventSubscriber
from backends.types import LegRequest, Sampling
from gateway.demo.cluster import MODEL, Cluster, ClusterPlan, run_cluster
from tests.contract.prompts import CHUNK_TOKENS, MODEL_PATH, PROMPT, RECORDINGS, SALT, SALTED
from tests.e2e.kit import VllmKit
from tests.integration.regions import eventually

SILENCE_S = 2.0
STORE_PATIENCE_S = 20.0


async def main(venv: Path, out: Path) -> None:
    """Start one engine with its LMCache server, and write what they answer into ``out``."""
    plan = ClusterPlan(
        MODEL_DIR, 1000.0, 0.0, counts=(1, 0, 0), kit=VllmKit(venv / "bin" / "python", MODEL_DIR, CHUNK_TOKENS)
    )

    def write(name: str, data: bytes) -> None:
        (out / name).write_bytes(data.replace(str(MODEL_DIR).encode(), MODEL_PATH.encode()))

    async with run_cluster(plan, _show) as cluster, _events(cluster) as frames:
        async with httpx.AsyncClient(base_url=cluster.children["p1"].url, timeout=120.0) as client:
            for name, leg in _legs().items():
                reply = await client.post("/v1/completions", content=encode_leg(leg), headers=JSON)
                write(f"{name}.http", f"{reply.status_code} {reply.headers['content-type']}\n".encode() + reply.content)
            for name, leg in _generate_legs().items():
                reply = await client.post(GENERATE_PATH, content=encode_generate(leg), headers=JSON)
                write(f"{name}.http", f"{reply.status_code} {reply.headers['content-type']}\n".encode() + reply.content)
            wrong = await client.get(GENERATE_PATH)
            write(
                "generate_by_get.http",
                f"{wrong.status_code} {wrong.headers['content-type']}\n".encode() + wrong.content,
            )
            for path in ("v1/models", "kv_event_sources"):
                found = (await client.get(f"/{path}")).raise_for_status().content
                write(f"{path.rpartition('/')[2]}.json", found.replace(str(cluster.folder).encode(), b"/run/pdd"))
            metrics = (await client.get("/metrics")).raise_for_status().text
            write("metrics.txt", re.sub(r"^.*_(bucket|created)\{.*\n", "", metrics, flags=re.MULTILINE).encode())
        write("lmcache_keys.json", msgspec.json.format(msgspec.json.encode(await _keys(cluster))))
        await asyncio.sleep(SILENCE_S)
        write("kv_events.json", msgspec.json.format(msgspec.json.encode(frames)))


JSON = {"content-type": "application/json"}


def _show(step: str) -> None:
    sys.stderr.write(f"{step}\n")


def _legs() -> dict[str, LegRequest]:
    greedy = Sampling(temperature=0.0, ignore_eos=True)
    with_logprobs = Sampling(temperature=0.0, ignore_eos=True, logprobs=2)
    return {
        "completion": LegRequest("r1", MODEL, PROMPT, 8, sampling=greedy),
        "completion_again": LegRequest("r2", MODEL, PROMPT, 1, sampling=greedy),
        "completion_logprobs": LegRequest("r3", MODEL, PROMPT[:40], 4, sampling=with_logprobs),
        "completion_salted": LegRequest("r4", MODEL, SALTED, 1, sampling=greedy, cache_salt=SALT),
        "too_long": LegRequest("r5", MODEL, [5] * 9000, 1, sampling=greedy),
        "unknown_model": LegRequest("r6", "absent", PROMPT[:40], 1, sampling=greedy),
    }


def _generate_legs() -> dict[str, LegRequest]:
    """Prompts of their own: the recorded KV events are those of the legs above."""
    whole = Sampling(temperature=0.0, repetition_penalty=1.0, ignore_eos=True, logprobs=2)
    return {
        "generate": LegRequest("r7", MODEL, PROMPT[:40], 8, sampling=replace(whole, logprobs=None)),
        "generate_logprobs": LegRequest("r8", MODEL, PROMPT[:40], 4, sampling=whole),
        "generate_too_long": LegRequest("r9", MODEL, [5] * 9000, 1, sampling=whole),
    }


@asynccontextmanager
async def _events(cluster: Cluster) -> AsyncIterator[list[dict[str, Any]]]:
    """Collects every event message while the block runs."""
    source = cluster.kv_events["p1"]
    frames: list[dict[str, Any]] = []
    context = Context()

    async def collect(subscriber: EventSubscriber) -> None:
        while True:
            frame = await subscriber.receive(SILENCE_S)
            if frame is not None:
                frames.append({"sequence": frame.sequence, "payload": frame.payload.hex()})

    async with EventSubscriber(context, EventSource(source.endpoint, source.replay_endpoint)) as subscriber:
        collecting = asyncio.create_task(collect(subscriber))
        try:
            yield frames
        finally:
            collecting.cancel()
            await asyncio.gather(collecting, return_exceptions=True)
    context.term()


async def _keys(cluster: Cluster) -> dict[str, int]:
    """Size of each value in the region's store, by key, once the two prompts' three full chunks are there."""
    redis = Redis.from_url(cluster.stores["a"].url)
    try:

        async def all_there() -> bool:
            return await redis.dbsize() >= len(PROMPT) // CHUNK_TOKENS + len(SALTED) // CHUNK_TOKENS

        assert await eventually(all_there, STORE_PATIENCE_S)
        return {key.decode(): await redis.strlen(key) for key in sorted([key async for key in redis.scan_iter()])}
    finally:
        await redis.aclose()


if __name__ == "__main__":
    folder = Path(sys.argv[2]) if len(sys.argv) > 2 else RECORDINGS
    folder.mkdir(parents=True, exist_ok=True)
    asyncio.run(main(Path(sys.argv[1]), folder))
