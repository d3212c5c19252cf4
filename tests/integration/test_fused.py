"""A P that writes on in RLD's place, and is killed while it does: the client gets the exact answer all the same."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.integration.faults import REACHED_WITHIN_S, Phase, ask_and_break, in_catch_up
from tests.integration.holds import Hold
from tests.integration.regions import QUICK, RELAYED, Regions

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="session")]

FUSED: dict[str, Any] = RELAYED | {"relay": QUICK | {"fused": "always"}}
SHORT_WORDS, ANSWER_TOKENS = 100, 1000


@asynccontextmanager
async def in_fused(regions: Regions) -> AsyncIterator[None]:
    """P writes on after its first token while the KV is on its way."""
    async with regions.narrow_link():
        with regions.holds.hold(Hold("prefill", after=2)) as gate:
            await gate.arrivals(within_s=REACHED_WITHIN_S)
            yield


async def kill_p(regions: Regions) -> None:
    """End P without a word."""
    regions.cluster.children["p1"].kill()


async def test_a_fused_answer_is_exact(whole: Regions) -> None:
    """P and MD make it, with no RLD between them, and the ids are those of one engine."""
    whole.use(FUSED)
    with whole.relay_kept_to(ANSWER_TOKENS // 2, of=ANSWER_TOKENS):
        async with whole.ask(words=SHORT_WORDS, tokens=ANSWER_TOKENS) as asked:
            assert (asked.response.headers["x-pdd-plan"], asked.response.headers["x-pdd-reason"]) == ("relay", "fused")
            await asked.read()
    assert asked.done and asked.ids == await whole.alone(asked, ANSWER_TOKENS)
    assert set(asked.roles) == {"P", "MD"} and asked.roles.count("P") > 1
    assert whole.newest_timeline()["fused"] is True


@pytest.mark.parametrize(
    ("phase", "tokens", "roles"),
    [(in_fused, 300, {"P", "RLD", "MD"}), (in_catch_up, ANSWER_TOKENS, {"P", "MD"})],
    ids=["in_fused", "in_catch_up"],
)
async def test_a_fused_p_may_be_killed(whole: Regions, phase: Phase, tokens: int, roles: set[str]) -> None:
    """An RLD goes on from P's ids while the KV crosses, or the MD that has it does, and none of the ids is lost."""
    whole.use(FUSED)
    asked = await ask_and_break(whole, phase, kill_p, SHORT_WORDS, tokens)
    assert asked.error is None and asked.done and asked.finish_reason == "length"
    assert set(asked.roles) == roles
    await whole.restart("p1")
    assert asked.ids == await whole.alone(asked, tokens)
