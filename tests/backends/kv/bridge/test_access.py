"""Who may use a bridge, and what it moves for whom."""

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis.asyncio
from starlette.types import Message

from backends.errors import EngineUnavailable, TransferFailed
from backends.kv.bridge.access import BadKeys, BridgeAccess, read_keys
from backends.kv.bridge.bodies import BodyReader, BodyRefused
from backends.kv.bridge.client import BridgePath
from backends.kv.bridge.keys import DIALECTS, KeyRequest
from backends.kv.bridge.mover import Mover
from backends.kv.bridge.resp import StoreAddress
from backends.kv.bridge.server import make_app
from backends.kv.bridge.types import MAX_CHUNKS, TransferOrder
from backends.types import TransferRequest
from tests.backends.kv.bridge.commands import run_command
from tests.backends.kv.bridge.regions import PATIENCE_S, QUICK
from tests.valkey import run_valkey

EAST, NORTH = "east-key-0123456789", "north-key-0123456789"
KEYS = {"east": EAST, "north": NORTH}
ORDER: dict[str, Any] = {"transfer_id": "t", "dialect": "lmcache-mp", "model": "demo", "token_ids": list(range(256))}


@asynccontextmanager
async def bridge(access: BridgeAccess) -> AsyncGenerator[httpx.AsyncClient, None]:
    """The API over a mover whose stores do not exist."""
    nowhere = StoreAddress("127.0.0.1", 1)
    mover = Mover(nowhere, nowhere, QUICK)
    moving = asyncio.create_task(mover.run())
    await asyncio.sleep(0)  # let it begin
    try:
        transport = httpx.ASGITransport(make_app(mover, access))
        async with httpx.AsyncClient(transport=transport, base_url="http://bridge") as client:
            yield client
    finally:
        moving.cancel()
        with suppress(asyncio.CancelledError):
            await moving


def shows(key: str) -> dict[str, str]:
    """The header of somebody who holds a key."""
    return {"Authorization": f"Bearer {key}"}


@pytest.mark.parametrize(
    "headers",
    [
        {},
        shows(""),
        shows("east"),
        shows(EAST + "x"),
        shows(EAST[:-1]),
        {"Authorization": EAST},
        {"Authorization": f"Basic {EAST}"},
        {"X-Api-Key": EAST},
    ],
)
async def test_nothing_is_done_without_a_key(headers: dict[str, str]) -> None:
    """Every path but health and metrics wants a key; a wrong one is a 401, whatever the path."""
    async with bridge(BridgeAccess(KEYS)) as client:
        for verb, path in (
            ("POST", "/v1/transfers"),
            ("GET", "/v1/transfers"),
            ("PATCH", "/v1/transfers/t"),
            ("DELETE", "/v1/transfers/t"),
            ("GET", "/v1/link"),
            ("POST", "/v1/keys"),
            ("GET", "/nowhere"),
        ):
            assert (await client.request(verb, path, headers=headers, json=ORDER)).status_code == 401, path
        assert (await client.get("/health", headers=headers)).status_code == 200
        assert (await client.get("/metrics", headers=headers)).status_code == 200
        two = [("Authorization", f"Bearer {EAST}"), ("Authorization", f"Bearer {NORTH}")]
        assert (await client.get("/v1/link", headers=two)).status_code == 401
        assert (await client.get("/v1/link", headers=shows(EAST))).status_code == 200


async def test_transfers_belong_to_who_opened_them() -> None:
    """Holders of different keys may use one id; each sees, changes and ends its own transfer, and no other."""
    async with bridge(BridgeAccess(KEYS)) as client:
        running = [asyncio.create_task(client.post("/v1/transfers", json=ORDER, headers=shows(EAST)))]
        async with asyncio.timeout(PATIENCE_S):
            while not (await client.get("/v1/transfers", headers=shows(EAST))).json():
                await asyncio.wait(running, timeout=0.01)
        assert (await client.get("/v1/transfers", headers=shows(NORTH))).json() == []
        path, later = "/v1/transfers/t", {"priority": "later"}
        for id_ in ("t", "east%0At"):
            assert (await client.delete(f"/v1/transfers/{id_}", headers=shows(NORTH))).status_code == 404
        assert (await client.patch(path, json=later, headers=shows(NORTH))).status_code == 404
        running.append(asyncio.create_task(client.post("/v1/transfers", json=ORDER, headers=shows(NORTH))))
        async with asyncio.timeout(PATIENCE_S):
            while not (await client.get("/v1/transfers", headers=shows(NORTH))).json():
                await asyncio.wait(running, timeout=0.01)
        assert (await client.patch(path, json=later, headers=shows(EAST))).status_code == 204
        for key, priority in ((EAST, "later"), (NORTH, "waiting")):
            (listed,) = (await client.get("/v1/transfers", headers=shows(key))).json()
            assert (listed["transfer_id"], listed["priority"]) == ("t", priority)
            assert (await client.delete(path, headers=shows(key))).status_code == 204
        await asyncio.gather(*running)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"model": "other"}, "no KV of 'other'"),
        ({"token_ids": None, "keys": ["session:alice"]}, "no key of a chunk"),
        ({"token_ids": None, "keys": ["demo@01000100@0@" + "a" * 63]}, "no key of a chunk"),
        ({"token_ids": None, "keys": ["other@01000100@0@" + "a" * 64]}, "no KV of 'other'"),
        ({"token_ids": None, "dialect": "lmcache", "keys": ["demo@1@0@ab@floatkv_bytes\nDEL"]}, "no key of a chunk"),
        ({"world_size": 255, "token_ids": [7] * 600_000}, f"597465 chunks.*larger than {MAX_CHUNKS}"),
        ({"group_windows": [None] * 16, "token_ids": [7] * 600_000}, "37488 chunks"),
    ],
    ids=lambda value: "" if isinstance(value, dict) else value,
)
async def test_only_chunks_of_known_models_are_moved(change: dict[str, Any], why: str) -> None:
    """Other models, keys of something else in the store and orders out of proportion are refused by name."""
    async with bridge(BridgeAccess(models=["demo"])) as client:
        answer = await client.post("/v1/transfers", json=ORDER | change)
        assert answer.status_code == 400
        assert re.search(why, answer.json()["error"])


@pytest.mark.parametrize("salt", [None, "tenant"])
def test_keys_of_chunks_are_taken(salt: str | None) -> None:
    """Whatever a dialect spells is a key of a chunk, with a salt and without."""
    for name, dialect in DIALECTS.items():
        keys = dialect.chunk_keys(KeyRequest("org/demo-7b", range(64), 16, salt=salt, world_size=2, hash_seed=3))
        BridgeAccess(models=["org/demo-7b"]).check(TransferOrder("t", name, keys=keys))  # type: ignore[arg-type]


def test_keys_come_from_a_variable_and_a_file(tmp_path: Path) -> None:
    """A variable holds one key, a file one a line; both are held by somebody with a name."""
    path = tmp_path / "keys"
    path.write_text(f"# gateways\neast {EAST}\n\nnorth {NORTH}\n")
    variables = {"KEY": "another-key-0123456789"}
    assert read_keys(variables, "KEY", str(path)) == {"gateway": variables["KEY"], **KEYS}
    assert read_keys(variables, None, None) == {}
    access = BridgeAccess(KEYS)
    assert [access.find_holder(f"Bearer {key}") for key in (EAST, NORTH, "x")] == ["east", "north", None]
    assert BridgeAccess().find_holder(None) == ""


@pytest.mark.parametrize(
    ("variable", "text", "why"),
    [
        ("UNSET", "", "UNSET is not set"),
        (None, "east", "line 1 of .* is no NAME KEY"),
        (None, f"east {EAST}\neast {NORTH}", "line 2 of .* stands twice"),
        (None, "# nothing", "holds no key"),
        (None, "east short", "fewer than 16 characters"),
        (None, None, "cannot be read"),
    ],
)
def test_keys_that_are_none_stop_the_start(tmp_path: Path, variable: str | None, text: str | None, why: str) -> None:
    """Missing, doubled and short keys are told of by their place; the message holds no key."""
    path = tmp_path / "keys"
    if text is not None:
        path.write_text(text)
    with pytest.raises(BadKeys, match=why) as refused:
        read_keys({}, variable, None if variable else str(path))
    assert EAST not in str(refused.value)


def coming(*pieces: bytes, gate: asyncio.Event | None = None) -> Any:
    """A ``receive`` that gives a body in pieces, the last of them once the gate opens."""
    left = list(pieces)

    async def receive() -> Message:
        piece = left.pop(0)
        if not left and gate is not None:
            await gate.wait()
        return {"type": "http.request", "body": piece, "more_body": bool(left)}

    return receive


async def test_bodies_are_bounded_one_by_one_and_together() -> None:
    """A body has a largest size and a longest time, all together a sum; what ended no longer counts."""
    bodies, gate = BodyReader(most_held_bytes=10, longest_s=0.05), asyncio.Event()
    async with bodies.read(coming(b"12345", b"67"), 8) as whole:
        assert whole == b"1234567"
        with pytest.raises(BodyRefused) as full:
            async with bodies.read(coming(b"1234"), 8):
                pass
        assert full.value.status == 503
    with pytest.raises(BodyRefused) as large:
        async with bodies.read(coming(b"12345", b"6789"), 8):
            pass
    assert large.value.status == 413
    with pytest.raises(BodyRefused) as slow:
        async with bodies.read(coming(b"1", b"2", gate=gate), 8):
            pass
    assert slow.value.status == 408
    async with bodies.read(coming(b"1234567890"), 10) as again:
        assert len(again) == 10


@pytest.mark.slow
@pytest.mark.timeout(60)
async def test_the_command_asks_for_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bridge process takes its key and its stores' passwords from the environment, and a path shows it."""
    monkeypatch.setenv("BRIDGE_KEY", EAST)
    monkeypatch.setenv("STORE_PASSWORD", "secret-of-the-store")
    async with run_valkey() as store:
        wanted = TransferRequest("t", "lmcache-mp", "demo", list(range(4)), 4)
        (key,) = DIALECTS["lmcache-mp"].chunk_keys(KeyRequest("demo", wanted.token_ids, 4))
        async with redis.asyncio.Redis.from_url(store) as client:
            await client.set(key, b"1234")
            await client.config_set("requirepass", "secret-of-the-store")
        url = f"redis://127.0.0.1:{StoreAddress.parse(store).port}"
        arguments = ["--source", url, "--dest", f"{url}/1", "--key-env=BRIDGE_KEY", "--model=demo"]
        arguments += ["--source-password-env=STORE_PASSWORD", "--dest-password-env=STORE_PASSWORD"]
        async with run_command("backends.kv.bridge.command", *arguments) as running:
            keyed, other = BridgePath(running.url, key=EAST), BridgePath(running.url)
            with pytest.raises(EngineUnavailable, match="401"):
                await other.link()
            async with asyncio.timeout(PATIENCE_S):
                assert [progress.wan_bytes async for progress in keyed.transfer(wanted)][-1] == 4
            with pytest.raises(TransferFailed, match="401"):
                await anext(other.transfer(wanted))
            with pytest.raises(TransferFailed, match="no KV of 'else'"):
                await anext(keyed.transfer(replace(wanted, model="else")))
            await keyed.aclose()
            await other.aclose()
