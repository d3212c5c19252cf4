"""Records how vLLM lends KV over NIXL, and LMCache's status: ``python -m tests.contract.record_kv VENV [OUT]``."""

import asyncio
import sys
from pathlib import Path

import httpx

from backends.engines.reference.demo_model import MODEL_DIR
from backends.engines.vllm_nixl import encode_lending
from backends.types import LegRequest, Sampling
from gateway.demo.cluster import MODEL, ClusterPlan, run_cluster
from tests.contract.prompts import CHUNK_TOKENS, MODEL_PATH, PROMPT, RECORDINGS
from tests.contract.record import JSON
from tests.e2e.kit import NixlKit, VllmKit

LEG = LegRequest("r1", MODEL, PROMPT, 1, sampling=Sampling(temperature=0.0), lends_kv=True)


async def main(python: Path, out: Path) -> None:
    """Start one engine of each kind and write what it, or its LMCache server, answers into ``out``."""
    only_p = (1, 0, 0)
    nixl = ClusterPlan(MODEL_DIR, 1000.0, 0.0, counts=only_p, kit=NixlKit(python))
    async with run_cluster(nixl, lambda _: None) as cluster, httpx.AsyncClient(timeout=120.0) as client:
        url = f"{cluster.children['p1'].url}/v1/completions"
        reply = (await client.post(url, content=encode_lending(LEG), headers=JSON)).raise_for_status()
        (out / "lend.json").write_bytes(reply.content)
    kit = VllmKit(python, MODEL_DIR, CHUNK_TOKENS)
    lmcache = ClusterPlan(MODEL_DIR, 1000.0, 0.0, counts=only_p, kit=kit)
    async with run_cluster(lmcache, lambda _: None), httpx.AsyncClient(timeout=120.0) as client:
        status = (await client.get(f"{kit.cache_url('a')}/status")).raise_for_status().content
        (out / "lmcache_status.json").write_bytes(status.replace(str(MODEL_DIR).encode(), MODEL_PATH.encode()))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]) / "bin" / "python", Path(sys.argv[2]) if len(sys.argv) > 2 else RECORDINGS))
