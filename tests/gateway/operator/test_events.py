"""The page's event stream: the whole state, then changes; slow, many and leaving readers."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
from hypothesis import given
from hypothesis import strategies as st

from gateway.operator import events
from gateway.operator.events import find_changes
from tests.gateway.cli.fleet import MODEL
from tests.gateway.operator.conftest import Desk

SECTIONS = st.dictionaries(st.sampled_from("abc"), st.dictionaries(st.sampled_from("xyz"), st.integers(0, 3)))


@given(SECTIONS, SECTIONS)
def test_changes_lead_from_the_old_state_to_the_new(old: dict[str, Any], new: dict[str, Any]) -> None:
    """A reader that applies the changes as the page does has the new state, but for sections without things."""
    held = {name: dict(section) for name, section in old.items()}
    for name in old.keys() - new.keys():
        new[name] = {}
    for name, changes in find_changes(old, new).items():
        for id_, value in changes.items():
            if value is None:
                del held[name][id_]
            else:
                held.setdefault(name, {})[id_] = value
    assert {k: v for k, v in held.items() if v} == {k: v for k, v in new.items() if v}


async def read_events(response: httpx.Response) -> AsyncIterator[tuple[str, Any]]:
    """Give each event's kind and data."""
    kind = ""
    async for line in response.aiter_lines():
        if line.startswith("event: "):
            kind = line[7:]
        elif line.startswith("data: "):
            yield kind, json.loads(line[6:])


async def test_the_stream_tells_all_and_then_what_changed(desk: Desk) -> None:
    """A request appears in a change with its plan, and nothing of its prompt is told."""
    async with desk.client.stream("GET", "/admin/events") as response:
        told = read_events(response)
        kind, first = await anext(told)
        assert kind == "state" and set(first["sections"]["instances"]) == {"p1", "rld1", "md1"}
        body = {"model": MODEL, "prompt": "a secret of mine", "max_tokens": 3}
        asked = await desk.client.post("/v1/completions", json=body)
        async for kind, change in told:
            assert kind == "change" and "secret" not in json.dumps(change)
            one = change["sections"].get("requests", {}).get(asked.headers["x-request-id"])
            if one and not one["running"]:
                break
        assert one["tenant"] == "default" and one["plan"] and one["has_decision"]


async def test_the_stream_ends_with_the_gateway(desk: Desk) -> None:
    """A gateway that shuts down says so last, and does not wait for its readers."""
    async with desk.client.stream("GET", "/admin/events") as response:
        told = read_events(response)
        await anext(told)
        desk.gateway.drain()
        last = [change async for _, change in told][-1]
    assert last["sections"]["gateway"]["self"]["draining"] is True


async def test_readers_are_bounded(desk: Desk, monkeypatch: Any) -> None:
    """One reader too many is sent away, and its place is free once another has left."""
    monkeypatch.setattr(events, "MOST_READERS", 1)
    async with desk.client.stream("GET", "/admin/events") as response:
        await anext(read_events(response))
        assert (await desk.client.get("/admin/events")).status_code == 503
