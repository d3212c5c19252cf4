"""What share of a shaped link the KV bridge uses, and the CPU that it needs for it.

Real stores, the real relay and the real bridge, each a process of its own.
"""

import asyncio
import os
import time
from pathlib import Path

import redis.asyncio

from backends.kv.bridge.client import BridgePath
from backends.kv.bridge.keys import DIALECTS, KeyRequest
from backends.kv.bridge.resp import StoreAddress
from backends.types import TransferRequest
from tests.backends.kv.bridge.commands import run_command, through
from tests.valkey import run_valkey

RATES_MBIT = (20, 80, 400)
DELAY_MS = 15
SECONDS = 4
CHUNK_TOKENS = 64
CHUNK_BYTES = 256 * 1024
METADATA = bytes.fromhex("00000400010000000400000002000000040000004000000080000000")


async def fill(store_url: str, model: str, token_ids: list[int]) -> None:
    """Store the chunks of a prompt as an engine would."""
    value = os.urandom(CHUNK_BYTES)
    async with redis.asyncio.Redis.from_url(store_url) as client:
        for key in DIALECTS["lmcache"].chunk_keys(KeyRequest(model, token_ids, CHUNK_TOKENS)):
            await client.set(key + "kv_bytes", value)
            await client.set(key + "metadata", METADATA)


def cpu_s(pid: int) -> float:
    """CPU time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(rate_mbit: int) -> tuple[float, float]:
    """Move some seconds' worth; give the share of the link's rate, and CPU seconds per GB."""
    chunks = int(rate_mbit * 125_000 * SECONDS / CHUNK_BYTES)
    token_ids = [index % 50_000 for index in range(chunks * CHUNK_TOKENS)]
    async with run_valkey() as store_a, run_valkey() as store_b:
        await fill(store_a, "bench", token_ids)
        target = f"127.0.0.1:{StoreAddress.parse(store_a).port}"
        async with (
            run_command(
                "backends.transport.wan.command",
                f"--route=127.0.0.1:0={target}",
                f"--rate-mbit={rate_mbit}",
                f"--delay-ms={DELAY_MS}",
            ) as wan,
            run_command(
                "backends.kv.bridge.command", "--source", through(store_a, wan.routes[0]), "--dest", store_b
            ) as bridge,
        ):
            path = BridgePath(bridge.url)
            cpu_before_s, start_s = cpu_s(bridge.process.pid), time.perf_counter()
            request = TransferRequest("bench", "lmcache", "bench", token_ids, CHUNK_TOKENS)
            moved = 0
            async for progress in path.transfer(request):
                moved = progress.wan_bytes
            elapsed_s = time.perf_counter() - start_s
            used_s = cpu_s(bridge.process.pid) - cpu_before_s
            await path.aclose()
    return moved / elapsed_s / (rate_mbit * 125_000), used_s / (moved / 1e9)


def run() -> dict[str, float]:
    """Measure all rates; print a table."""
    figures: dict[str, float] = {}
    print(f"KV bridge over a shaped link, {DELAY_MS} ms one way, {CHUNK_BYTES // 1024} KiB chunks")
    print(f"{'link Mbit/s':>12} {'reached':>9} {'share':>7} {'CPU s/GB':>9}")
    for rate_mbit in RATES_MBIT:
        share, cpu_per_gb = asyncio.run(measure(rate_mbit))
        print(f"{rate_mbit:>12} {share * rate_mbit:>9.1f} {share:>7.1%} {cpu_per_gb:>9.2f}")
        figures[f"bridge_share_{rate_mbit}"] = share
        figures[f"bridge_cpu_s_per_gb_{rate_mbit}"] = cpu_per_gb
    return figures


if __name__ == "__main__":
    run()
