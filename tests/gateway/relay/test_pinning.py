"""A pinned tenant's answers over real sockets: nothing crosses, whoever fails."""

import random
from dataclasses import replace

import pytest

from gateway.errors import GatewayError
from gateway.relay.failover import Failover
from policies.plans import Singular
from policies.types import Role
from policies.where import Where
from tests.fakes.script import Cut, Script
from tests.gateway.relay.stage import QUICK, finish_of, ids_of, open_stage, read, roles_of, unsplit

PINNED = {"regions": ["a"]}


async def test_pinned_answer_is_exact_and_crosses_nothing() -> None:
    """P and an RLD of the region make the answer of one engine; no MD, link or budget is used."""
    async with open_stage(PINNED) as stage:
        answer = stage.ask()
        events = await read(answer)
        assert (answer.plan_name, answer.plan_reason) == ("direct", "region_pinned")
        assert ids_of(events) == unsplit() and roles_of(events) == ["P", "RLD"]
        assert finish_of(events).completion_tokens == 40
        await stage.quiet()
        assert not stage.path.transfers and not stage.engines["md1"].calls and not stage.engines["md2"].calls
        assert stage.service.learning.singular("demo").used == 0
        assert stage.service.learning.alignment("demo").prompt_tokens == 0


async def test_replacements_stay_in_the_region() -> None:
    """Each RLD that dies in the middle is replaced by another one of the region; with none left the client sees it."""
    async with open_stage(PINNED | {"relay": QUICK | {"max_attempts": 2}}) as stage:
        for name in ("rld1", "rld2"):
            stage.engines[name].scripts.append(Script(fault=Cut(5)))
        events = await read(stage.ask())
        assert ids_of(events) == unsplit() and roles_of(events) == ["P", "RLD"]
        assert stage.engines["rld1"].calls and stage.engines["rld2"].calls
        for name in ("rld1", "rld2"):
            stage.engines[name].scripts += [Script(fault=Cut(None))] * 10
        with pytest.raises(GatewayError):
            await read(stage.ask())
        assert not stage.path.transfers and not stage.engines["md1"].calls and not stage.engines["md2"].calls


async def test_nobody_in_the_region_is_a_clear_503() -> None:
    """A tenant pinned to a region without decode instances is refused, not served elsewhere."""
    async with open_stage({"regions": ["c"]}) as stage:
        with pytest.raises(GatewayError) as refused:
            stage.ask()
        assert (refused.value.status, refused.value.code) == (503, "no_instance")
        assert "region_pinned" in refused.value.message


@pytest.mark.parametrize(
    ("regions", "allowed"),
    [(None, {"md1", "md2"}), ({"a", "b"}, {"md1"}), ({"a", "c"}, {"md2"}), ({"a"}, set())],
)
async def test_a_role_that_the_plan_left_open_is_filled_where_the_prompt_may_be(
    regions: set[str] | None, allowed: set[str]
) -> None:
    """A singular answer whose RLD is lost goes on at an MD of any region, but only of one that the tenant allows."""
    async with open_stage(ids=("p1", "rld1", "md1", "md2")) as stage:
        other = stage.pools["md2"]
        other.spec = replace(other.spec, region="c")
        where = Where(None if regions is None else frozenset(regions))
        found = set()
        for seed in range(20):
            plan = Singular("p1", "rld1", "live")
            failover = Failover(plan, stage.request(), where, stage.pools, random.Random(seed))
            picked = failover.pick(Role.MD)
            found |= set() if picked is None else {picked.spec.id}
    assert found == allowed
