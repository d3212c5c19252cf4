"""Relays over real vLLM engines that read each other's KV by NIXL: one engine's ids, and tickets that kill nobody."""

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from backends.engines.reference.demo_model import MODEL_DIR
from gateway.demo.cluster import ClusterPlan, run_cluster
from tests.e2e.kit import RATE_MBIT, NixlKit
from tests.integration.faults import in_eager, leave_in
from tests.integration.holds import Hold
from tests.integration.regions import RELAYED, Regions, eventually, open_front

pytestmark = [
    pytest.mark.slow,
    pytest.mark.e2e,
    pytest.mark.nixl,
    pytest.mark.timeout(400),
    pytest.mark.asyncio(loop_scope="session"),
]

LINK: dict[str, Any] = {"source": "a", "dest": "b", "path": "nixl", "chunk_tokens": 32, "rate_mbit": RATE_MBIT}
WORDS = 900
ANSWER_TOKENS = 200


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def lending(python: Path) -> AsyncIterator[Regions]:
    """One P, one RLD, one MD, which lend each other KV."""
    plan = ClusterPlan(MODEL_DIR, rate_mbit=RATE_MBIT, delay_ms=15.0, kit=NixlKit(python))
    changes = {"links": [LINK], "rules": RELAYED}
    async with run_cluster(plan, lambda _: None) as cluster, open_front(cluster, changes) as regions:
        async with regions.ask(words=100, tokens=8) as asked:
            await asked.read()
        yield regions


async def test_md_reads_the_prompt_from_p_beside_rld(lending: Regions) -> None:
    """Both read P's KV, each by its own ticket; MD has the last word, the ids are one engine's, and all engines live.

    On one machine either may be first.
    """
    before = await lending.cluster.taken_from_store("md1")
    with lending.relay_kept_to(ANSWER_TOKENS // 2, of=ANSWER_TOKENS):
        async with lending.ask(words=WORDS, tokens=ANSWER_TOKENS) as asked:
            await asked.read()
    assert asked.error is None and asked.ids == await lending.alone(asked, ANSWER_TOKENS)
    assert asked.roles[-1] == "MD" and "P" not in asked.roles
    assert await lending.cluster.taken_from_store("md1") - before >= len(asked.prompt_ids) // 2
    assert all(child.is_running for child in lending.cluster.children.values())


async def test_rld_reads_the_prompt_from_p(lending: Regions) -> None:
    """While no MD can be used RLD writes the whole answer, from KV that it has read."""
    main = lending.gateway.pools["md1"]
    before = await lending.cluster.taken_from_store("rld1")
    main.quarantined_until_s = time.monotonic() + 600
    try:
        async with lending.ask(words=WORDS, tokens=60) as asked:
            await asked.read()
    finally:
        main.quarantined_until_s = 0.0
    assert asked.error is None and asked.ids == await lending.alone(asked, 60)
    assert set(asked.roles) == {"RLD"}
    assert await lending.cluster.taken_from_store("rld1") - before >= len(asked.prompt_ids) // 2


async def test_next_answers_are_exact_too(lending: Regions) -> None:
    """One prompt after the other, around a block's end, each is one engine's."""
    for words in (30, 31, 32, 33, 400):
        async with lending.ask(words=words, tokens=60) as asked:
            await asked.read()
        assert asked.error is None and asked.ids == await lending.alone(asked, 60)


async def test_client_that_leaves_frees_the_engines(lending: Regions) -> None:
    """The client goes while RLD writes: no engine goes on, none dies, and the next answer is exact."""
    with lending.holds.hold(Hold("warm")):  # on one machine MD may be first
        await leave_in(lending, in_eager, WORDS, 3000)
    assert await eventually(lambda: lending.engines_idle(0.5), 30.0)
    async with lending.ask(words=WORDS, tokens=60) as asked:
        await asked.read()
    assert asked.error is None and asked.ids == await lending.alone(asked, 60)
