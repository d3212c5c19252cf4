"""KV paths beside the bridge, over real vLLM and LMCache: one engine's ids, and KV that crosses the link once.

Another main-decode engine stands in region B. Its LMCache server has region A's store as its L2, over the shaped link.
"""

from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import httpx
import pytest
import pytest_asyncio
from redis.asyncio import Redis

from backends.kv.bridge.keys import DIALECTS, KeyRequest
from gateway.demo.cluster import MODEL, Cluster, find_kv_events
from tests.e2e.kit import FAR, RATE_MBIT, VllmKit
from tests.e2e.test_relay import CHUNK_BYTES, CHUNK_TOKENS
from tests.integration.faults import in_eager, leave_in
from tests.integration.holds import Hold
from tests.integration.regions import ANSWER_TOKENS, RELAYED, Regions, eventually, open_front

pytestmark = [pytest.mark.slow, pytest.mark.e2e, pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="session")]

WORDS = 1600
PREFETCH_SLICE_CHUNKS = 4
SEEDS = count(1000, 1000)
PULL = Hold("warm", unasked=True)


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def engines(regions: Regions, kit: VllmKit) -> AsyncIterator[list[dict[str, Any]]]:
    """P and RLD of the session's cluster, and the far MD, as a gateway's settings have them."""
    cluster = regions.cluster
    server, engine = kit.cache_server(cluster, FAR), kit.engine(cluster, FAR)
    try:
        await server.start()
        await engine.start()
        async with httpx.AsyncClient(timeout=10) as client:
            events = await find_kv_events(client, engine.url)
        cluster.children[FAR] = engine
        far = {"id": FAR, "role": "MD", "model": MODEL, "region": "b", "url": engine.url, "kv_events": events.endpoint}
        known = cluster.settings("127.0.0.1:0")["engines"]
        yield [one for one in known if one["role"] != "MD"] + [far | kit.settings(FAR)]
    finally:
        cluster.children.pop(FAR, None)
        await engine.stop()
        await server.stop()


@pytest_asyncio.fixture(loop_scope="session", params=["prefetch", "engine_pull"])
async def front(
    request: pytest.FixtureRequest, whole: Regions, kit: VllmKit, engines: list[dict[str, Any]]
) -> AsyncIterator[Regions]:
    """A gateway whose link has the path, and prompts of its own."""
    link = {"source": "a", "dest": "b", "path": request.param, "dialect": kit.dialect, "rate_mbit": RATE_MBIT}
    if request.param == "prefetch":
        link["cache_server"] = kit.cache_url(FAR)
    changes = {"engines": engines, "links": [link], "rules": RELAYED}
    async with open_front(whole.cluster, changes, next(SEEDS)) as front:
        yield front


async def test_relay_over_the_path(front: Regions) -> None:
    """The far MD goes on once it has the KV, and what crossed is the prompt's KV, once.

    It may have it before RLD has said anything. An MD that pulls is asked once P's server has written all of it:
    what it has not, MD computes.
    """
    cluster = front.cluster
    crossed, cached = await cluster.store_bytes(), await cluster.taken_from_store(FAR)
    with front.relay_kept_to(ANSWER_TOKENS // 2, of=ANSWER_TOKENS), front.holds.hold(PULL) as gate:
        async with front.ask(words=WORDS) as asked:
            await asked.read(until=lambda asked: bool(asked.prompt_ids))
            assert await eventually(lambda: _has_all(cluster, asked.prompt_ids), 60)
            gate.open()
            await asked.read()
    chunks = len(asked.prompt_ids) // CHUNK_TOKENS
    assert asked.error is None and asked.ids == await front.alone(asked)
    assert asked.roles[0] == "P" and asked.roles[-1] == "MD"
    assert await cluster.taken_from_store(FAR) - cached >= chunks * CHUNK_TOKENS - 1
    assert chunks * CHUNK_BYTES <= await cluster.store_bytes() - crossed < 1.5 * chunks * CHUNK_BYTES


async def _has_all(cluster: Cluster, prompt: list[int]) -> bool:
    """Whether region A's store has all chunks of a prompt."""
    request = KeyRequest(cluster.plan.kit.kv_name or MODEL, prompt, CHUNK_TOKENS)
    async with Redis.from_url(cluster.stores["a"].url) as store:
        keys = DIALECTS[cluster.plan.kit.dialect].chunk_keys(request)
        return bool(await store.exists(*keys) == len(keys))


async def test_client_that_leaves_stops_what_can_be_stopped(front: Regions) -> None:
    """The client goes while the KV crosses: prefetches end with their slice; engines are free again in any case."""
    link = front.gateway.links.get("a", "b", MODEL)
    assert link is not None
    await leave_in(front, in_eager, 3000, ANSWER_TOKENS)
    crossed = await front.cluster.store_bytes()
    assert await eventually(lambda: front.engines_idle(0.5), 30.0)
    if link.path.traits.can_stop:
        assert await front.link_quiet(10.0, CHUNK_BYTES // 16)
        rest = await front.cluster.store_bytes() - crossed
        assert rest <= (PREFETCH_SLICE_CHUNKS + 1) * CHUNK_BYTES
