"""A P that writes on in RLD's place, and is killed while it does: the client gets the exact answer all the same."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.integration.faults import watch_admission
from tests.integration.regions import QUICK, RELAYED, Regions, eventually, in_catch_up

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="session")]

FUSED: dict[str, Any] = RELAYED | {"relay": QUICK | {"fused": "always"}}
SHORT_WORDS, ANSWER_TOKENS = 100, 600
"""Their KV crosses in half a second, when P, which nothing slows, is far from done."""


async def in_fused(regions: Regions) -> None:
    """P writes, and its KV is on its way."""
    assert await regions.reached("first_token", role="P"), regions.newest_timeline()


async def test_a_fused_answer_is_exact(whole: Regions) -> None:
    """P and MD make it, with no RLD between them, and the ids are those of one engine."""
    whole.use(FUSED)
    async with whole.ask(words=SHORT_WORDS, tokens=ANSWER_TOKENS) as asked:
        assert (asked.response.headers["x-pdd-plan"], asked.response.headers["x-pdd-reason"]) == ("relay", "fused")
        await asked.read()
    assert asked.done and asked.ids == await whole.alone(asked, ANSWER_TOKENS)
    assert set(asked.roles) == {"P", "MD"} and asked.roles.count("P") > 1
    assert whole.newest_timeline()["fused"] is True


@pytest.mark.parametrize("phase", [in_fused, in_catch_up], ids=lambda phase: phase.__name__)
async def test_a_fused_p_may_be_killed(whole: Regions, phase: Callable[[Regions], Awaitable[None]]) -> None:
    """Whoever goes on, an RLD while the KV crosses or the MD that has it, does so from P's ids, none of them lost."""
    whole.use(FUSED)
    is_admitted = watch_admission(whole)

    async def kill_p() -> None:
        assert await eventually(is_admitted, 10)
        await phase(whole)
        whole.cluster.children["p1"].kill()

    killing = asyncio.create_task(kill_p())
    async with whole.ask(words=SHORT_WORDS, tokens=ANSWER_TOKENS) as asked:
        await asked.read()
    await killing
    assert asked.error is None and asked.done and asked.finish_reason == "length"
    events = whole.newest_timeline()["events"]
    ends = [one["outcome"] for one in events if one["event"] == "leg_ended" and one["kind"] == "prefill"]
    assert ends not in (["ended"], ["closed"])
    assert asked.roles[0] == "P" and len(set(asked.roles)) > 1
    await whole.restart("p1")
    assert asked.ids == await whole.alone(asked, ANSWER_TOKENS)
