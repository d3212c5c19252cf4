"""The bridge under several faults at once: what it says is complete is there, bit by bit."""

import asyncio
import os
import random
import signal

import pytest

from backends.kv.bridge.types import BridgeLimits
from tests.backends.kv.bridge.chunks import CHUNK_BYTES, chunks_of, prompt, store
from tests.backends.kv.bridge.regions import PATIENCE_S, two_regions, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(90)]


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_cuts_stalls_and_stops_in_any_order(seed: int) -> None:
    """Transfers that share prompts survive cuts, stalls and each other's ends; only stopped ones do not complete."""
    dice = random.Random(seed)
    async with two_regions(rate_mbit=100, limits=BridgeLimits(silence_s=0.4, small_bytes=6 * CHUNK_BYTES)) as regions:
        prompts = {f"t{number}": chunks_of(prompt(dice.randint(4, 16), seed=number // 2)) for number in range(6)}
        for chunks in prompts.values():
            await store(regions.a, chunks)
        transfers = {name: regions.mover.open(name, chunks, 60) for name, chunks in prompts.items()}
        stopped = dice.choice(sorted(transfers))
        for step in range(6):
            running = [transfer for transfer in transfers.values() if not transfer.ended]
            if not running:
                break
            one = dice.choice(running)
            one.changed.clear()
            async with asyncio.timeout(PATIENCE_S):
                await one.changed.wait()
            if step == 2:
                regions.mover.close(stopped)
            if dice.random() < 0.5:
                regions.wan.cut(for_s=0.1)
            else:
                regions.wan.stall(True)
                asyncio.get_running_loop().call_later(dice.uniform(0.05, 0.6), regions.wan.stall, False)
        for name, transfer in transfers.items():
            await until(transfer, lambda transfer=transfer: transfer.ended)  # type: ignore[misc]
            if transfer.state == "complete":
                assert await regions.holds(prompts[name])
            else:
                assert (name, transfer.error) == (stopped, "stopped")
        assert regions.mover.schedule.held_bytes == 0
        assert regions.mover.transfers == {}


async def test_a_destination_that_hangs() -> None:
    """While the receiving store hangs, no more is fetched than may be held; when it answers again all completes."""
    limits = BridgeLimits(silence_s=0.3, memory_bytes=4 * CHUNK_BYTES)
    async with two_regions(limits=limits) as regions:
        chunks = chunks_of(prompt(20))
        await store(regions.a, chunks)
        transfer = regions.mover.open("t", chunks, 60)
        await until(transfer, lambda: transfer.standing.chunks_done >= 2)
        os.kill(regions.store_b.pid, signal.SIGSTOP)
        try:
            line = regions.mover.destination.servers.one.control.connection
            assert line is not None
            async with asyncio.timeout(PATIENCE_S):
                await line.closed
            assert regions.mover.schedule.held_bytes <= 4 * CHUNK_BYTES
            done = transfer.standing.chunks_done
        finally:
            os.kill(regions.store_b.pid, signal.SIGCONT)
        await until(transfer, lambda: transfer.ended)
        assert transfer.state == "complete"
        assert done < 20
        assert await regions.holds(chunks)
        assert regions.crossed_chunks() < 21
