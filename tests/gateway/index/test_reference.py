"""What the index expects of the reference engine against what the engine reports."""

import random
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest

from backends.engines.reference.blocks import BlockPool, PoolEvent
from backends.engines.reference.core import ReferenceEngine
from backends.engines.reference.events import EventPublisher, EventSettings
from backends.engines.reference.metrics import EngineMetrics
from backends.engines.reference.scheduler import Scheduler, StepLimits
from backends.engines.reference.server import ReferenceServer, Served
from backends.engines.reference.text import Text
from backends.kv.subscriber import EventSource
from gateway.index.types import CacheSpec
from tests.backends.engines.reference.rig import EOS, VOCAB, ScriptedModel
from tests.conformance.index_suite import TIMES, Changes
from tests.fakes.memory_index import MemoryIndex
from tests.fakes.server import AppServer

POOL_TOKENS, CONTEXT_TOKENS = 2560, 1500
REQUESTS = 200


class CountingPublisher(EventPublisher):
    """Counts the batches that it sent."""

    sent = 0

    def publish(self, events: Sequence[PoolEvent]) -> None:
        """Send one batch."""
        self.sent += bool(events)
        super().publish(events)


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("block_tokens", [16, 32, 24])
async def test_hits_are_what_the_engine_finds(block_tokens: int) -> None:
    """Over random conversations in a small pool the hit is the engine's ``cached_tokens``, within one block."""
    rng, changes = random.Random(block_tokens), Changes()
    pool = BlockPool(POOL_TOKENS // block_tokens, block_tokens)
    metrics = EngineMetrics("tiny", blocks=pool.total_blocks, block_size_tokens=block_tokens, dtype="float32")
    publisher = CountingPublisher(EventSettings(), block_tokens)
    engine = ReferenceEngine(
        ScriptedModel(),
        pool,
        Scheduler(pool, StepLimits(256, 8, 0, min_fetch_tokens=0)),
        role="main",
        context_tokens=CONTEXT_TOKENS,
        metrics=metrics,
        publisher=publisher,
        store=None,
    )
    served = Served("tiny", CONTEXT_TOKENS, VOCAB, frozenset({EOS}), 1, 5.0, publisher.source)
    index = MemoryIndex(times=TIMES, on_change=changes)
    source = EventSource(publisher.source.endpoint, publisher.source.replay_endpoint)
    index.add_instance(CacheSpec("md1", "tiny", block_tokens, (source,)))
    async with AsyncExitStack() as stack:
        publisher.start()
        stack.push_async_callback(publisher.aclose)
        engine.start()
        stack.push_async_callback(engine.aclose)
        server = await stack.enter_async_context(
            AppServer(ReferenceServer(engine, Text(Path()), metrics, served).app())
        )
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=server.url))
        await index.start()
        stack.push_async_callback(index.aclose)
        await changes.until(lambda: index.stats().instances["md1"].known)
        conversations: list[list[int]] = []
        salts = [None, None, "tenant-a"]
        found = 0
        for _ in range(REQUESTS):
            if not conversations or rng.random() < 0.25:
                shared = [9] * rng.randrange(0, 80)
                conversations.append(shared)
            turn = rng.choice(conversations)
            turn += [rng.randrange(1, VOCAB) for _ in range(rng.randrange(1, 120))]
            if len(turn) > CONTEXT_TOKENS - 60:
                del turn[rng.randrange(1, len(turn)) :]
            salt = rng.choice(salts)
            body = {"model": "tiny", "prompt": turn, "max_tokens": rng.randrange(1, 40), "return_token_ids": True}
            if salt is not None:
                body["cache_salt"] = salt
            hit = index.lookup("tiny", turn, salt)["md1"].tokens
            reply = (await client.post("/v1/completions", json=body)).raise_for_status().json()
            cached = reply["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert hit is not None
            assert abs(hit - cached) <= (0 if block_tokens % 16 == 0 else block_tokens)
            found += cached
            turn += reply["choices"][0]["token_ids"]
            await changes.until(lambda: _taken(index) >= publisher.sent)
        assert found > 5_000
        assert pool.cached_blocks > pool.total_blocks / 2


def _taken(index: MemoryIndex) -> int:
    counters = index.stats().counters
    return counters.get("frames", 0) + counters.get("replayed_frames", 0)
