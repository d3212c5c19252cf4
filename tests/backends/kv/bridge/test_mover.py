"""Tests of the bridge's mover over a real link between two real stores."""

import asyncio
import time
from contextlib import suppress

import pytest

from backends.kv.bridge.mover import Mover, TooManyTransfers, TransferExists
from backends.kv.bridge.resp import StoreAddress
from backends.kv.bridge.types import BridgeLimits, ChunkId
from tests.backends.kv.bridge.chunks import CHUNK_BYTES, METADATA, chunks_of, prompt, store
from tests.backends.kv.bridge.regions import PATIENCE_S, QUICK, two_regions, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]


async def test_moves_a_prompt() -> None:
    """Every chunk arrives bit by bit as it was, and progress counts each."""
    async with two_regions() as regions:
        chunks = chunks_of(prompt(8))
        await store(regions.a, chunks)
        transfer = await regions.move(chunks)
        assert (transfer.state, transfer.error) == ("complete", None)
        standing = transfer.standing
        assert (standing.chunks_total, standing.chunks_done, standing.chunks_present) == (8, 8, 0)
        assert standing.wan_bytes == 8 * CHUNK_BYTES
        assert await regions.holds(chunks)
        assert 8 <= regions.crossed_chunks() < 8.1


async def test_a_chunk_is_never_seen_half() -> None:
    """The string that makes a chunk exist is written after its KV, chunk by chunk in the prompt's order."""
    async with two_regions() as regions:
        chunks = chunks_of(prompt(4))
        await store(regions.a, chunks)
        async with regions.b.monitor() as monitor:
            await regions.move(chunks)
            written: list[str] = []
            async with asyncio.timeout(PATIENCE_S):
                while len(written) < 8:
                    words = (await monitor.next_command())["command"].split(" ")
                    if words[0] == "SET":
                        written.append(words[1])
    for chunk in chunks:
        assert written.index(chunk.key + "kv_bytes") < written.index(chunk.key + "metadata")
    values = [key for key in written if key.endswith("kv_bytes")]
    assert values == [chunk.key + "kv_bytes" for chunk in chunks]


async def test_skips_what_is_there() -> None:
    """Chunks that B holds do not cross; a chunk that B holds half does."""
    async with two_regions() as regions:
        chunks = chunks_of(prompt(6))
        await store(regions.a, chunks)
        await store(regions.b, chunks[:4])
        await regions.b.delete(chunks[1].key + "kv_bytes")
        transfer = await regions.move(chunks)
        assert transfer.standing.chunks_present == 3
        assert transfer.standing.wan_bytes == 3 * CHUNK_BYTES
        assert regions.crossed_chunks() < 3.1
        again = await regions.move(chunks, "again")
        assert (again.standing.chunks_present, again.standing.wan_bytes) == (6, 0)


async def test_a_shared_chunk_crosses_once() -> None:
    """Two transfers of one prompt at once cost one crossing, and both complete."""
    async with two_regions() as regions:
        chunks = chunks_of(prompt(8))
        await store(regions.a, chunks)
        first, second = await asyncio.gather(regions.move(chunks, "t"), regions.move(chunks, "u"))
        assert (first.state, second.state) == ("complete", "complete")
        assert first.standing.wan_bytes + second.standing.wan_bytes == 8 * CHUNK_BYTES
        assert regions.crossed_chunks() < 8.1


async def test_stops_within_one_chunk() -> None:
    """After a transfer is closed, no more than one chunk's bytes of it come over the link."""
    async with two_regions(rate_mbit=20) as regions:
        chunks, other = chunks_of(prompt(40)), chunks_of(prompt(1, seed=1))
        await store(regions.a, [*chunks, *other])
        transfer = regions.mover.open("t", chunks, 60)
        await until(transfer, lambda: transfer.standing.chunks_done >= 3)
        before = regions.crossed_chunks()
        assert regions.mover.close("t")
        assert transfer.state == "failed"
        assert (await regions.move(other, "u")).state == "complete"
        assert regions.crossed_chunks() - before < 2.1
        assert regions.mover.schedule.held_bytes == 0


async def test_a_rate_cap_holds() -> None:
    """A bridge told to use less than the link has takes the time that the lower rate needs."""
    async with two_regions(limits=BridgeLimits(rate_cap_bytes_per_s=10 * CHUNK_BYTES)) as regions:
        chunks = chunks_of(prompt(8))
        await store(regions.a, chunks)
        start_s = time.monotonic()
        assert (await regions.move(chunks)).state == "complete"
        assert time.monotonic() - start_s >= 0.7


async def test_stopping_one_leaves_the_others() -> None:
    """Transfers that share a connection with a stopped one complete, at the cost of a chunk or two."""
    async with two_regions(rate_mbit=40, limits=BridgeLimits(connections=1)) as regions:
        chunks, other = chunks_of(prompt(30)), chunks_of(prompt(10, seed=1))
        await store(regions.a, [*chunks, *other])
        stopped = regions.mover.open("t", chunks, 60)
        kept = regions.mover.open("u", other, 60)
        await until(stopped, lambda: stopped.standing.chunks_done >= 3)
        assert not kept.ended
        regions.mover.close("t")
        await until(kept, lambda: kept.ended)
        assert kept.state == "complete"
        assert await regions.holds(other)
        assert regions.crossed_chunks() < stopped.standing.chunks_done + 10 + 3


async def test_a_store_that_is_starting_is_waited_for() -> None:
    """A server that answers but refuses commands for now is a link that is down, not a failure."""

    async def loading(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readline():
            writer.write(b"-LOADING the dataset is being read\r\n")
        writer.close()

    async with await asyncio.start_server(loading, "127.0.0.1", 0) as server:
        address = StoreAddress("127.0.0.1", server.sockets[0].getsockname()[1])
        mover = Mover(address, address, QUICK)
        moving = asyncio.create_task(mover.run())
        await asyncio.sleep(0)  # let it begin
        transfer = mover.open("t", chunks_of(prompt(1)), 0.3)
        await until(transfer, lambda: transfer.ended)
        assert transfer.error == "the deadline has passed"
        assert not moving.done()
        moving.cancel()
        with suppress(asyncio.CancelledError):
            await moving


async def test_small_overtakes_large() -> None:
    """A small transfer that comes later completes while a large one is under way."""
    async with two_regions(rate_mbit=40, limits=BridgeLimits(small_bytes=4 * CHUNK_BYTES)) as regions:
        large, small = chunks_of(prompt(30)), chunks_of(prompt(3, seed=1))
        await store(regions.a, [*large, *small])
        slow = regions.mover.open("large", large, 60)
        await until(slow, lambda: slow.standing.chunks_done >= 2)
        quick = await regions.move(small, "small")
        assert quick.state == "complete"
        assert slow.standing.chunks_done < 12


async def test_a_cut_link_resumes() -> None:
    """After a cut the transfer goes on where it was: chunks that had arrived do not cross again."""
    async with two_regions(rate_mbit=40) as regions:
        chunks = chunks_of(prompt(24))
        await store(regions.a, chunks)
        transfer = regions.mover.open("t", chunks, 60)
        await until(transfer, lambda: transfer.standing.chunks_done >= 6)
        regions.wan.cut(for_s=0.3)
        await until(transfer, lambda: transfer.ended)
        assert transfer.state == "complete"
        assert await regions.holds(chunks)
        assert regions.crossed_chunks() < 24 + 3


async def test_a_stalled_link_is_noticed_and_resumes() -> None:
    """Silence takes the link down within the limit; when bytes flow again the transfer completes."""
    async with two_regions(rate_mbit=40) as regions:
        chunks = chunks_of(prompt(16))
        await store(regions.a, chunks)
        transfer = regions.mover.open("t", chunks, 60)
        await until(transfer, lambda: transfer.standing.chunks_done >= 4)
        regions.wan.stall(True)
        async with asyncio.timeout(PATIENCE_S):
            control = regions.mover.source.servers.one.control.connection
            assert control is not None
            await control.closed
        assert not transfer.ended
        regions.wan.stall(False)
        await until(transfer, lambda: transfer.ended)
        assert transfer.state == "complete"
        assert regions.crossed_chunks() < 16 + 4


async def test_waits_for_chunks_that_are_not_stored_yet() -> None:
    """A transfer that is opened before the prefill moves each chunk once the engine has stored it."""
    async with two_regions() as regions:
        chunks = chunks_of(prompt(5))
        transfer = regions.mover.open("t", chunks, 60)
        await until(transfer, lambda: transfer.state == "open")
        for count in (1, 2, 5):
            await store(regions.a, chunks[transfer.standing.chunks_done : count])
            await until(transfer, lambda count=count: transfer.standing.chunks_done == count)  # type: ignore[misc]
        await until(transfer, lambda: transfer.ended)
        assert transfer.state == "complete"


async def test_a_chunk_that_queues_is_told_of() -> None:
    """A transfer says which chunks were seen while they still wait for the link."""
    async with two_regions(rate_mbit=8) as regions:
        ahead, chunks = chunks_of(prompt(20)), chunks_of(prompt(40, seed=1))
        await store(regions.a, ahead)
        regions.mover.open("ahead", ahead, 60)
        transfer = regions.mover.open("t", chunks, 60)
        await until(transfer, lambda: transfer.state == "open")
        assert not transfer.standing.first_seen
        await store(regions.a, chunks)
        await until(transfer, lambda: transfer.standing.first_seen)
        assert (transfer.state, transfer.standing.chunks_done) == ("moving", 0)
        await until(transfer, lambda: transfer.standing.chunks_seen == len(chunks))
        assert transfer.standing.chunks_done < len(chunks)


async def test_metadata_without_kv_is_waited_for() -> None:
    """A chunk of which the sending store holds only the metadata counts as not stored."""
    async with two_regions() as regions:
        (chunk,) = chunks_of(prompt(1))
        await regions.a.set(chunk.key + "metadata", METADATA)
        transfer = regions.mover.open("t", [chunk], 60)
        await until(transfer, lambda: transfer.state == "open")
        await store(regions.a, [chunk])
        await until(transfer, lambda: transfer.ended)
        assert transfer.state == "complete"


async def test_a_deadline_ends_a_transfer() -> None:
    """Chunks that never come fail the transfer at its deadline."""
    async with two_regions() as regions:
        chunks = chunks_of(prompt(2))
        await store(regions.a, chunks[:1])
        transfer = await regions.move(chunks, deadline_s=0.5)
        assert (transfer.state, transfer.error) == ("failed", "the deadline has passed")
        assert transfer.standing.chunks_done == 1
        assert regions.mover.transfers == {}


@pytest.mark.parametrize("surplus_bytes", [-1, 1, -CHUNK_BYTES])
async def test_a_wrong_size_is_refused(surplus_bytes: int) -> None:
    """KV whose size is not what its metadata announces fails the transfer, is counted, and never reaches B."""
    async with two_regions() as regions:
        chunks = chunks_of(prompt(3))
        await store(regions.a, chunks)
        await regions.a.set(chunks[1].key + "kv_bytes", bytes(CHUNK_BYTES + surplus_bytes))
        transfer = await regions.move(chunks)
        assert transfer.state == "failed"
        assert "wrong size" in (transfer.error or "")
        assert regions.mover.tally.refused == 1
        assert not await regions.b.exists(chunks[1].key + "metadata")
        assert (await regions.move(chunks[:1], "u")).state == "complete"


async def test_nonsense_metadata_is_refused() -> None:
    """Metadata that contradicts itself, and strings of another type, fail the transfer."""
    async with two_regions() as regions:
        one, two, three = chunks_of(prompt(3))
        await store(regions.a, [one, two, three])
        await regions.a.set(one.key + "metadata", METADATA[:-4])
        await regions.a.delete(two.key + "kv_bytes", three.key + "metadata")
        await regions.a.lpush(two.key + "kv_bytes", "x")
        await regions.a.lpush(three.key + "metadata", "x")
        for chunk, words in ((one, "wrong size"), (two, "WRONGTYPE"), (three, "WRONGTYPE")):
            transfer = await regions.move([chunk])
            assert transfer.state == "failed"
            assert words in (transfer.error or "")


async def test_a_chunk_beyond_the_memory_is_refused() -> None:
    """A chunk larger than the bridge's memory fails the transfer instead of filling it."""
    async with two_regions(limits=BridgeLimits(memory_bytes=CHUNK_BYTES - 1)) as regions:
        chunks = chunks_of(prompt(1))
        await store(regions.a, chunks)
        transfer = await regions.move(chunks)
        assert transfer.state == "failed"
        assert "larger than the bridge's memory" in (transfer.error or "")


async def test_a_full_destination_fails_the_transfer() -> None:
    """A store that takes no more ends the transfer with that reason, at once."""
    async with two_regions(max_memory_bytes=4 << 20) as regions:
        chunks = chunks_of(prompt(24))
        await store(regions.a, chunks)
        transfer = await regions.move(chunks)
        assert (transfer.state, transfer.error) == ("failed", "the receiving store is full")


async def test_a_destination_that_evicts_fails_the_transfer() -> None:
    """Completion is never claimed for chunks that the receiving store has evicted again."""
    async with two_regions(max_memory_bytes=4 << 20, policy="allkeys-lru") as regions:
        chunks = chunks_of(prompt(24))
        await store(regions.a, chunks)
        transfer = await regions.move(chunks)
        assert transfer.state == "failed"
        assert "evicts" in (transfer.error or "")


async def test_an_evicting_destination_takes_what_fits() -> None:
    """Older prompts make room: each transfer that fits completes, over and over."""
    async with two_regions(max_memory_bytes=12 << 20, policy="allkeys-lru") as regions:
        for seed in range(5):
            chunks = chunks_of(prompt(12, seed))
            await store(regions.a, chunks)
            assert (await regions.move(chunks)).state == "complete"
            assert await regions.holds(chunks)


async def test_a_destination_that_restarts_empty() -> None:
    """When the receiving store comes back without its data, everything is moved again before completion."""
    async with two_regions(rate_mbit=40) as regions:
        chunks = chunks_of(prompt(12))
        await store(regions.a, chunks)
        transfer = regions.mover.open("t", chunks, 60)
        await until(transfer, lambda: transfer.standing.chunks_done >= 4)
        await regions.store_b.stop()
        await regions.store_b.start()
        await until(transfer, lambda: transfer.ended)
        assert (transfer.state, transfer.error) == ("complete", None)
        assert await regions.holds(chunks)


async def test_limits_of_admission() -> None:
    """One id names one transfer at a time, and there are only so many at once."""
    async with two_regions(limits=BridgeLimits(transfers=2)) as regions:
        regions.mover.open("t", chunks_of(prompt(1)), 60)
        with pytest.raises(TransferExists):
            regions.mover.open("t", chunks_of(prompt(1)), 60)
        regions.mover.open("u", chunks_of(prompt(1)), 60)
        with pytest.raises(TooManyTransfers):
            regions.mover.open("v", chunks_of(prompt(1)), 60)
        assert regions.mover.close("t")
        assert not regions.mover.close("t")
        regions.mover.open("t", chunks_of(prompt(1)), 60)


async def test_a_prompt_without_a_full_chunk() -> None:
    """Nothing to move is complete at once."""
    async with two_regions() as regions:
        transfer = await regions.move([])
        assert (transfer.state, transfer.standing.chunks_total) == ("complete", 0)


async def test_server_dialect() -> None:
    """Chunks of the LMCache server's dialect, one string each, move as well."""
    async with two_regions(limits=QUICK) as regions:
        chunks = [ChunkId("lmcache-mp", f"demo@01000100@0@{index:064x}") for index in range(4)]
        for chunk in chunks:
            await regions.a.set(chunk.key, bytes([1]) * CHUNK_BYTES)
        transfer = await regions.move(chunks)
        assert transfer.state == "complete"
        assert [await regions.b.strlen(chunk.key) for chunk in chunks] == [CHUNK_BYTES] * 4
