"""What an index does about engines that say nothing: restarts and losses that no message tells of."""

from collections.abc import AsyncGenerator

import pytest

from gateway.index.ingest import IngestTimes
from tests.conformance.index_suite import HASHES, PROMPT, Changes, Clock, Rig
from tests.fakes.memory_index import MemoryIndex
from tests.gateway.index.publisher import CLEARED, stored

OFTEN = IngestTimes(idle_s=0.05, replay_timeout_s=5.0, rebuild_s=600.0)


@pytest.fixture
async def rig() -> AsyncGenerator[Rig, None]:
    """A memory index that asks silent engines often."""
    changes, clock = Changes(), Clock()
    index = MemoryIndex(key=b"secret", times=OFTEN, now=clock, on_change=changes)
    await index.start()
    found = Rig(index, changes, clock)
    async with found.resources:
        yield found
        await index.aclose()


async def test_a_silent_restart_is_found_out(rig: Rig) -> None:
    """An engine that came back empty and says nothing holds nothing any more, and that is known."""
    engine = await rig.publisher()
    await engine.publish(stored(HASHES[:4], PROMPT[:64]))
    await rig.until_tokens(64)
    engine.restart()
    await rig.until_tokens(0)
    assert rig.count("restarts") == 1
    await engine.publish(stored(HASHES[:2], PROMPT[:32]))
    await rig.until_tokens(32)


async def test_a_lost_last_message_is_fetched(rig: Rig) -> None:
    """No later message shows the gap: the engine's buffer is asked, and has it."""
    engine = await rig.publisher()
    await engine.publish(stored(HASHES[:2], PROMPT[:32]))
    await rig.until_tokens(32)
    await engine.publish(stored(HASHES[2:4], PROMPT[32:64], parent=HASHES[1]), lost=True)
    await rig.until_tokens(64)
    assert rig.count("gaps") == 0 and rig.count("restarts") == 0


async def test_without_a_buffer_a_gap_is_forgotten_after_a_while(rig: Rig) -> None:
    """What was missed cannot be had: the hit is unknown until a long stretch of events without a gap, or a clear."""
    engine = await rig.publisher(replay=False)
    await engine.publish(CLEARED)
    await rig.until_tokens(0)
    await engine.publish(stored([99], range(16)), lost=True)
    await engine.publish(stored(HASHES[:2], PROMPT[:32]))
    await rig.until_tokens(None)
    assert rig.count("gaps") == 1 and rig.hit().at_least_tokens == 32
    rig.clock.now_s += 599
    await engine.publish(stored(HASHES[2:4], PROMPT[32:64], parent=HASHES[1]))
    await rig.changes.until(lambda: rig.hit().at_least_tokens == 64)
    assert rig.hit().tokens is None
    rig.clock.now_s += 2
    await rig.until_tokens(64)
