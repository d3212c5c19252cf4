"""Relays over real vLLM engines that read each other's KV by NIXL: one engine's ids, and tickets that kill nobody."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from backends.reference.demo_model import MODEL_DIR
from gateway.demo.cluster import Plan, run_cluster
from tests.e2e.kit import RATE_MBIT, NixlKit
from tests.integration.regions import RELAYED, Regions, eventually, in_eager, open_front

pytestmark = [
    pytest.mark.slow,
    pytest.mark.e2e,
    pytest.mark.nixl,
    pytest.mark.timeout(300),
    pytest.mark.asyncio(loop_scope="session"),
]

LINK: dict[str, Any] = {"source": "a", "dest": "b", "path": "nixl", "chunk_tokens": 32, "rate_mbit": RATE_MBIT}
WORDS = 900
ANSWER_TOKENS = 200


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def lending(python: Path) -> AsyncIterator[Regions]:
    """One P, one RLD, one MD, which lend each other KV."""
    plan = Plan(MODEL_DIR, rate_mbit=RATE_MBIT, delay_ms=15.0, kit=NixlKit(python))
    changes = {"links": [LINK], "rules": RELAYED}
    async with run_cluster(plan, lambda _: None) as cluster, open_front(cluster, changes) as regions:
        async with regions.ask(words=100, tokens=8) as asked:
            await asked.read()
        yield regions


async def test_rld_and_md_each_read_the_prompt_from_p(lending: Regions) -> None:
    """RLD begins with what it read, MD goes on from what it read; the ids are one engine's, and all engines live."""
    before = {name: await lending.cluster.taken_from_store(name) for name in ("rld1", "md1")}
    async with lending.ask(words=WORDS, tokens=ANSWER_TOKENS) as asked:
        await asked.read()
    assert asked.error is None and asked.ids == await lending.alone(asked, ANSWER_TOKENS)
    assert asked.roles[0] == "RLD" and asked.roles[-1] == "MD"
    for name, taken in before.items():
        assert await lending.cluster.taken_from_store(name) - taken >= len(asked.prompt_ids) // 2
    assert all(child.is_running for child in lending.cluster.children.values())


async def test_next_answers_are_exact_too(lending: Regions) -> None:
    """One prompt after the other, around a block's end, each is one engine's."""
    for words in (30, 31, 32, 33, 400):
        async with lending.ask(words=words, tokens=60) as asked:
            await asked.read()
        assert asked.error is None and asked.ids == await lending.alone(asked, 60)


async def test_client_that_leaves_frees_the_engines(lending: Regions) -> None:
    """The client goes while RLD writes: no engine goes on, none dies, and the next answer is exact."""
    async with lending.ask(words=WORDS, tokens=3000) as asked:
        await asked.read(until=lambda asked: bool(asked.ids))
        await in_eager(lending)
    assert await eventually(lambda: lending.engines_idle(0.5), 30.0)
    async with lending.ask(words=WORDS, tokens=60) as asked:
        await asked.read()
    assert asked.error is None and asked.ids == await lending.alone(asked, 60)
