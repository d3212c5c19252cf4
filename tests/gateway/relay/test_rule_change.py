"""Rules that change while a request runs."""

import asyncio

from policies.rules import parse_rules
from tests.fakes.gates import HoldGate
from tests.fakes.script import Script
from tests.gateway.relay.stage import QUICK, ids_of, open_stage, read, roles_of, unsplit


async def test_a_running_request_keeps_its_rules() -> None:
    """A request goes on under the rules that it started with, hand-off included; the next one has the new rules."""
    async with open_stage({"handoff": {"mode": "catch_up", "threshold_tokens": 2}}, ids=("p1", "rld1", "md1")) as stage:
        gate = HoldGate()
        stage.engines["rld1"].scripts.append(Script(holds={8: gate}))
        running = asyncio.create_task(read(stage.ask()))
        await gate.arrivals()
        pinned = {"regions": ["a"], "handoff": {"mode": "one_shot"}, "relay": QUICK}
        stage.service.rulebook.replace(parse_rules(pinned))
        (await stage.path.opened()).complete()
        await stage.engines["md1"].calls_made(1)
        gate.open()
        events = await running
        assert ids_of(events) == unsplit() and roles_of(events) == ["P", "RLD", "MD"]
        assert stage.engines["md1"].calls[0].body["max_tokens"] == 1, "a round of catch-up, as the old rules say"
        calls = len(stage.engines["md1"].calls)
        later = await read(stage.ask())
        assert roles_of(later) == ["P", "RLD"] and len(stage.engines["md1"].calls) == calls
