"""Requests that make engines fail take no engine from anybody else."""

from contextlib import suppress
from dataclasses import replace

import pytest

from backends.types import Sampling
from gateway.errors import GatewayError
from tests.fakes.script import Cut, ErrorEvent, Refuse, Script
from tests.gateway.relay.stage import Stage, ids_of, open_stage, read, unsplit

POISON = [7, 7, 7, *range(100, 200)]
FAULTS = {
    "500": Script(fault=Refuse(500)),
    "cut without an answer": Script(fault=Cut(None)),
    "cut after two tokens": Script(fault=Cut(2)),
    "error event": Script(fault=ErrorEvent(0)),
}
RULES = {"relay": {"max_attempts": 6, "transfer_retry_backoff_s": 0.001, "transfer_retry_backoff_max_s": 0.002}}


async def ask_poison(stage: Stage, number: int) -> None:
    """A hostile tenant's request, which fails on every engine."""
    request = replace(stage.request(tenant="bad", part_of=f"bad{number}"), prompt=POISON)
    with suppress(GatewayError):  # with two tokens an attempt it comes to its end
        await read(stage.service.generate(request))


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
@pytest.mark.parametrize("ids", [("p1", "p2", "rld1", "rld2", "md1", "md2"), ("p1", "rld1", "md1")], ids=["two", "one"])
@pytest.mark.parametrize("roles", [("p", "rld", "md"), ("md", "rld"), ("md",)], ids="+".join)
async def test_poison_takes_no_engine_from_others(fault: Script, ids: tuple[str, ...], roles: tuple[str, ...]) -> None:
    """While one tenant's requests make all engines of some roles fail, each request of another is answered whole."""
    async with open_stage(RULES, ids=ids) as stage:
        stage.path.is_instant = True
        for engine in (engine for id_, engine in stage.engines.items() if id_.startswith(roles)):
            engine.judge = lambda prompt: fault if prompt[:3] == POISON[:3] else None
        for number in range(4):
            await ask_poison(stage, number)
            assert all(instance.usable(stage.pools.clock()) for instance in stage.pools.instances)
            answer = stage.ask(tenant="good", sampling=Sampling(temperature=0.0))
            assert ids_of(await read(answer)) == unsplit()
        await stage.quiet()
