"""How long KV that a client waits for takes behind what only aligns, and behind another tenant's, over a shaped link.

Real stores, the real relay and the real bridge, each a process of its own. The same is measured with one class and one
tenant for all.
"""

import asyncio
import statistics
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace

from backends.kv.bridge.client import BridgePath
from backends.kv.bridge.resp import StoreAddress
from backends.types import TransferPriority, TransferRequest
from tests.backends.kv.bridge.commands import run_command, through
from tests.bench.bench_bridge import CHUNK_BYTES, CHUNK_TOKENS, DELAY_MS, fill
from tests.valkey import run_valkey

RATE_MBIT = 80
OTHERS = 8
CHUNKS = 80
"""Of each transfer: too many for the bridge to take it for a small one."""
RUNS = 3
PATIENCE_S = 60


def ask(name: str, number: int, chunks: int = CHUNKS, tenant: str = "") -> TransferRequest:
    """A transfer of a prompt that shares nothing with those of other numbers."""
    token_ids = [number * 100_000 + index for index in range(chunks * CHUNK_TOKENS)]
    return TransferRequest(name, "lmcache", "bench", token_ids, CHUNK_TOKENS, tenant=tenant)


@asynccontextmanager
async def linked(requests: Sequence[TransferRequest]) -> AsyncGenerator[BridgePath, None]:
    """A bridge over the link, with all KV of ``requests`` in the sending store."""
    async with run_valkey() as store_a, run_valkey() as store_b:
        for request in requests:
            await fill(store_a, "bench", list(request.token_ids))
        route = f"--route=127.0.0.1:0=127.0.0.1:{StoreAddress.parse(store_a).port}"
        shape = (f"--rate-mbit={RATE_MBIT}", f"--delay-ms={DELAY_MS}")
        async with run_command("backends.transport.wan.command", route, *shape) as wan:
            source = through(store_a, wan.routes[0])
            async with run_command("backends.kv.bridge.command", "--source", source, "--dest", store_b) as bridge:
                path = BridgePath(bridge.url)
                try:
                    yield path
                finally:
                    await path.aclose()


async def move(path: BridgePath, request: TransferRequest) -> float:
    """Seconds that a transfer takes."""
    start_s = time.perf_counter()
    async with aclosing(path.transfer(request)) as stream:
        async for _ in stream:
            pass
    return time.perf_counter() - start_s


@asynccontextmanager
async def others(
    path: BridgePath, requests: Sequence[TransferRequest], priority: TransferPriority
) -> AsyncGenerator[None, None]:
    """Transfers that run, and get ``priority`` when each has begun to move, as when an answer has ended."""
    moving = asyncio.Semaphore(0)

    async def run(request: TransferRequest) -> None:
        has_moved = False
        async with aclosing(path.transfer(request)) as stream:
            async for progress in stream:
                if progress.state == "moving" and not has_moved:
                    has_moved = True
                    path.prioritise(request.transfer_id, priority)
                    moving.release()

    tasks = [asyncio.create_task(run(replace(one, transfer_id=f"{priority}-{one.transfer_id}"))) for one in requests]
    try:
        async with asyncio.timeout(PATIENCE_S):
            for _ in tasks:
                await moving.acquire()
        yield
    finally:
        assert not any(task.done() for task in tasks), "the others were to outlast what is measured"
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def measure() -> tuple[float, float, float, float]:
    """Seconds of a transfer that a client waits for: alone, behind others that align, behind another tenant's, and
    behind others like itself."""
    timed = [ask(f"timed-{number}", number) for number in range(2 * RUNS + 2)]
    behind = [ask(f"other-{number}", 100 + number, 2 * CHUNKS) for number in range(OTHERS)]
    flood = [replace(request, transfer_id=f"flood-{request.transfer_id}", tenant="flood") for request in behind]
    async with linked([*timed, *behind]) as path:
        alone = [await move(path, request) for request in timed[:RUNS]]
        async with others(path, behind, "later"):
            aligning = [await move(path, request) for request in timed[RUNS:-2]]
        async with others(path, flood, "waiting"):
            tenant_s = await move(path, timed[-2])
        async with others(path, behind, "waiting"):
            equal_s = await move(path, timed[-1])
    return statistics.median(alone), statistics.median(aligning), tenant_s, equal_s


def run() -> dict[str, float]:
    """Measure and print."""
    alone_s, aligning_s, tenant_s, equal_s = asyncio.run(measure())
    print(f"{CHUNKS} chunks of {CHUNK_BYTES // 1024} KiB at {RATE_MBIT} Mbit/s: {alone_s:.2f} s alone")
    print(f"behind {OTHERS} that align {aligning_s:.2f} s, behind {OTHERS} of its own class {equal_s:.2f} s")
    print(f"behind {OTHERS} of another tenant's, of its own class, {tenant_s:.2f} s")
    return {
        "direct_alone_s": alone_s,
        "direct_behind_8_aligning_ratio": aligning_s / alone_s,
        "direct_behind_8_equal_ratio": equal_s / alone_s,
        "direct_behind_8_of_another_tenant_ratio": tenant_s / alone_s,
    }


if __name__ == "__main__":
    run()
