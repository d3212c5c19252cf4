"""Tests of the bridge's HTTP API: what it refuses, and what it tells."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx
import pytest

from backends.kv.bridge.mover import Mover
from backends.kv.bridge.resp import StoreAddress
from backends.kv.bridge.server import make_app
from backends.kv.bridge.types import BridgeLimits
from tests.backends.kv.bridge.chunks import CHUNK_BYTES, chunks_of, prompt, store
from tests.backends.kv.bridge.regions import QUICK, Regions, two_regions

OPEN = {"transfer_id": "t", "dialect": "lmcache", "model": "demo", "token_ids": [1, 2, 3], "chunk_tokens": 2}


@asynccontextmanager
async def idle_bridge(limits: BridgeLimits = QUICK) -> AsyncGenerator[httpx.AsyncClient, None]:
    """The API over a mover whose stores do not exist."""
    nowhere = StoreAddress("127.0.0.1", 1)
    mover = Mover(nowhere, nowhere, limits)
    moving = asyncio.create_task(mover.run())
    await asyncio.sleep(0)  # let it begin
    try:
        async with client_of(mover) as client:
            yield client
    finally:
        moving.cancel()
        with suppress(asyncio.CancelledError):
            await moving


def client_of(mover: Mover) -> httpx.AsyncClient:
    """An HTTP client of the API over ``mover``, without a network."""
    return httpx.AsyncClient(transport=httpx.ASGITransport(make_app(mover)), base_url="http://bridge")


async def post(regions: Regions, **fields: Any) -> list[dict[str, Any]]:
    """Run a transfer over the API to its end; its lines."""
    body = {"transfer_id": "t", "dialect": "lmcache", "model": "demo", "chunk_tokens": 16, **fields}
    async with client_of(regions.mover) as client:
        answer = await client.post("/v1/transfers", json=body, timeout=15)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.text.splitlines()]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"transfer_id": None}, "transfer_id"),
        ({"transfer_id": ""}, "transfer_id"),
        ({"dialect": "other"}, "dialect"),
        ({"token_ids": ["x"]}, "token_ids"),
        ({"token_ids": None}, "either token_ids or keys"),
        ({"keys": ["k"]}, "either token_ids or keys"),
        ({"token_ids": [-1]}, "token_ids"),
        ({"chunk_tokens": 0}, "chunk_tokens"),
        ({"model": "a@b"}, "model"),
        ({"dtype": "int3"}, "dtype"),
        ({"world_size": 0}, "world_size"),
        ({"deadline_s": 0}, "deadline_s"),
        ({"dialect": "lmcache-mp", "salt": "a/b"}, "salt"),
        ({"surprise": 1}, "surprise"),
        ({"priority": "urgent"}, "priority"),
        ({"tenant": "t" * 65}, "tenant"),
        ({"weight": 0}, "weight"),
    ],
)
async def test_refuses_malformed_requests(change: dict[str, Any], words: str) -> None:
    """What is malformed is refused with 400 and the field's name, and opens nothing."""
    async with idle_bridge() as client:
        answer = await client.post("/v1/transfers", json={**OPEN, **change})
        assert answer.status_code == 400
        assert words in answer.json()["error"]
        assert (await client.get("/v1/transfers")).json() == []


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"transfer_id":"\\ud800"}', b"1" * 1000])
async def test_refuses_what_is_no_request(body: bytes) -> None:
    """Bodies that are no JSON object of the right kind are refused with 400."""
    async with idle_bridge() as client:
        assert (await client.post("/v1/transfers", content=body)).status_code == 400


async def test_refuses_an_endless_body() -> None:
    """A body beyond the bound is refused with 413 before it is held in memory."""

    async def pieces() -> AsyncGenerator[bytes, None]:
        for _ in range(65):
            yield bytes(1 << 20)

    async with idle_bridge() as client:
        assert (await client.post("/v1/transfers", content=pieces())).status_code == 413


@pytest.mark.parametrize("body", [{}, {"priority": "urgent"}, {"priority": "later", "more": 1}, ["later"], None])
async def test_refuses_malformed_changes(body: Any) -> None:
    """A change that names no class, or more than that, is refused with 400."""
    async with idle_bridge() as client:
        assert (await client.patch("/v1/transfers/t", json=body)).status_code == 400
        assert (await client.patch("/v1/transfers/t", content=bytes(65 << 20))).status_code == 413


async def test_the_class_is_told_and_changed() -> None:
    """A transfer has the class of its order, or else the highest, until it is given another one."""
    async with idle_bridge() as client:
        orders = [
            {**OPEN, "transfer_id": "a/b", "priority": "relay", "tenant": "t"},
            {**OPEN, "transfer_id": "u"},
        ]
        running = [asyncio.create_task(client.post("/v1/transfers", json=order)) for order in orders]
        async with asyncio.timeout(15):
            while len(listed := (await client.get("/v1/transfers")).json()) < 2:
                await asyncio.wait(running, timeout=0.01)
        assert {item["transfer_id"]: item["priority"] for item in listed} == {"a/b": "relay", "u": "waiting"}
        assert {item["transfer_id"]: item["tenant"] for item in listed} == {"a/b": "t", "u": ""}
        assert (await client.patch("/v1/transfers/a%2Fb", json={"priority": "later"})).status_code == 204
        assert (await client.get("/v1/transfers")).json()[0]["priority"] == "later"
        link = (await client.get("/v1/link")).json()
        assert (link["open_transfers"], link["later_transfers"]) == (2, 1)
        for transfer_id in ("a/b", "u"):
            assert (await client.delete(f"/v1/transfers/{transfer_id}")).status_code == 204
        await asyncio.gather(*running)


async def test_refuses_beyond_its_capacity() -> None:
    """More transfers than allowed get 503."""
    async with idle_bridge(BridgeLimits(transfers=0)) as client:
        assert (await client.post("/v1/transfers", json=OPEN)).status_code == 503


async def test_tells_its_state_without_its_stores() -> None:
    """With both stores away the bridge answers and says so."""
    async with idle_bridge() as client:
        assert (await client.get("/health")).json() == {"status": "ok", "link_up": False, "destination_up": False}
        link = (await client.get("/v1/link")).json()
        unknown = {"rate_bytes_per_s": 0, "queued_bytes": 0, "rtt_s": 0, "wan_bytes_total": 0}
        nothing = {"open_transfers": 0, "queued_later_bytes": 0, "later_transfers": 0}
        assert link == unknown | {"up": False} | nothing
        assert "pdd_bridge_link_up 0.0" in (await client.get("/metrics")).text
        assert (await client.delete("/v1/transfers/nobody")).status_code == 404
        assert (await client.patch("/v1/transfers/nobody", json={"priority": "later"})).status_code == 404
        assert (await client.put("/v1/transfers")).status_code == 405


async def test_a_transfer_waits_for_its_destination_until_the_deadline() -> None:
    """A receiving store that is away fails the transfer at its deadline, not before."""
    async with idle_bridge() as client:
        answer = await client.post("/v1/transfers", json={**OPEN, "deadline_s": 0.2})
        lines = [json.loads(line) for line in answer.text.splitlines()]
    assert [line["state"] for line in lines] == ["failed"]
    assert lines[0]["error"] == "the deadline has passed"


@pytest.mark.slow
@pytest.mark.timeout(60)
async def test_streams_progress() -> None:
    """The stream begins with what is present, has at most two lines a chunk, seen and moved, and ends complete."""
    async with two_regions() as regions:
        chunks = chunks_of(prompt(6))
        await store(regions.a, chunks)
        await store(regions.b, chunks[:2])
        lines = await post(regions, token_ids=prompt(6))
        assert lines[0]["state"] == "open"
        assert (lines[0]["chunks_total"], lines[0]["chunks_done"], lines[0]["chunks_present"]) == (6, 2, 2)
        assert {line["state"] for line in lines[1:-1]} <= {"moving"}
        assert (lines[0]["chunk_bytes"], {line["chunk_bytes"] for line in lines[1:]}) == (0, {CHUNK_BYTES})
        assert len(lines) <= 2 + 2 * 4
        done = [line["chunks_done"] for line in lines]
        assert done == sorted(done)
        assert (lines[-1]["state"], lines[-1]["chunks_done"], lines[-1]["error"]) == ("complete", 6, None)
        metrics = (await client_of(regions.mover).get("/metrics")).text
        assert 'pdd_bridge_chunks_total{result="moved"} 4.0' in metrics
        assert 'pdd_bridge_chunks_total{result="present"} 2.0' in metrics
        assert 'pdd_bridge_transfers_total{result="complete"} 1.0' in metrics
        assert all("pdd_bridge_" in line for line in metrics.splitlines())


@pytest.mark.slow
@pytest.mark.timeout(60)
async def test_who_waits_is_not_held_up_by_what_is_for_later() -> None:
    """Behind five long transfers, two of them lowered while they run, a new one gets the link at once."""
    async with two_regions(rate_mbit=60) as regions, client_of(regions.mover) as client:
        for seed in range(6):
            await store(regions.a, chunks_of(prompt(12, seed)))
        first = ["relay", "waiting", "later", "later", "later"]
        others = [
            asyncio.create_task(post(regions, transfer_id=f"t{seed}", token_ids=prompt(12, seed), priority=priority))
            for seed, priority in enumerate(first)
        ]
        async with asyncio.timeout(15):
            while sum(item["progress"]["chunks_done"] for item in (await client.get("/v1/transfers")).json()) < 5:
                await regions.mover.source.round_trip_s()
        for name in ("t0", "t1"):
            assert (await client.patch(f"/v1/transfers/{name}", json={"priority": "later"})).status_code == 204
        before = regions.mover.tally.moved
        lines = await post(regions, transfer_id="new", token_ids=prompt(12, 5))
        assert lines[-1]["state"] == "complete"
        link = (await client.get("/v1/link")).json()
        assert 0 < link["queued_later_bytes"] == link["queued_bytes"]
        assert link["open_transfers"] == link["later_transfers"] == 5
        page = (await client.get("/metrics")).text
        assert 'pdd_bridge_queued_bytes{priority="waiting"} 0.0' in page
        # what was on order when it came, its own, and the others' share
        assert regions.mover.tally.moved - before < 12 + 6
        assert {(await other)[-1]["state"] for other in others} == {"complete"}


@pytest.mark.slow
@pytest.mark.timeout(60)
async def test_takes_keys_instead_of_tokens() -> None:
    """A caller may name the chunks itself."""
    async with two_regions() as regions:
        chunks = chunks_of(prompt(2))
        await store(regions.a, chunks)
        lines = await post(regions, keys=[chunk.key for chunk in chunks])
        assert lines[-1]["state"] == "complete"
        assert await regions.holds(chunks)


@pytest.mark.slow
@pytest.mark.timeout(60)
async def test_delete_stops_and_frees_the_id() -> None:
    """While a transfer runs its id is taken; deleting it ends its stream, and the id is free again."""
    async with two_regions() as regions, client_of(regions.mover) as client:
        waiting = asyncio.create_task(post(regions, token_ids=prompt(2)))
        async with asyncio.timeout(15):
            while not (listed := (await client.get("/v1/transfers")).json()):
                await regions.mover.source.round_trip_s()
            assert listed[0]["transfer_id"] == "t"
            assert (await client.post("/v1/transfers", json={**OPEN})).status_code == 409
            assert (await client.delete("/v1/transfers/t")).status_code == 204
            lines = await waiting
        assert (lines[-1]["state"], lines[-1]["error"]) == ("failed", "stopped")
        await store(regions.a, chunks_of(prompt(2)))
        assert (await post(regions, token_ids=prompt(2)))[-1]["state"] == "complete"


@pytest.mark.slow
@pytest.mark.timeout(60)
async def test_keys_are_found_by_what_they_hold() -> None:
    """Each side's keys with a marker are told with their sizes; several markers, odd letters and no key are fine."""
    async with two_regions() as regions, client_of(regions.mover) as client:
        await regions.a.mset({"m@01000100@0@ab@salt[1]*": b"12345", "m@01000100@0@cd@salt1": b"1", "other": b"x"})
        await regions.b.set("m@1@0@ab@floatkv_bytes", b"123")

        async def find(side: str, *markers: str) -> dict[str, int]:
            answer = (await client.post("/v1/keys", json={"side": side, "markers": markers})).json()
            assert answer["is_whole"]
            return {one["key"]: one["size_bytes"] for one in answer["keys"]}

        assert await find("source", "@salt[1]*") == {"m@01000100@0@ab@salt[1]*": 5}
        assert set(await find("source", "@ab@", "@cd@")) == {"m@01000100@0@ab@salt[1]*", "m@01000100@0@cd@salt1"}
        assert len(await find("source", "@ab@", "@cd@", "@ef@")) == 2
        assert await find("dest", "@ab@") == {"m@1@0@ab@floatkv_bytes": 3}
        assert await find("dest", "nothing") == {}


async def test_a_store_that_is_away_shows_no_keys() -> None:
    """A look at a store that does not answer is a 503 that says so; one without a marker is refused."""
    async with idle_bridge() as client:
        answer = await client.post("/v1/keys", json={"side": "dest", "markers": ["m"]})
        assert (answer.status_code, "cannot be looked through" in answer.json()["error"]) == (503, True)
        assert (await client.post("/v1/keys", json={"side": "dest", "markers": []})).status_code == 400
