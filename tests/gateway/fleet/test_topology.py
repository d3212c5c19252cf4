"""Engines and links that change while a gateway runs, over fake engines on real sockets."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from backends.types import LegRequest
from gateway.config.document_store import Document
from gateway.config.fleet_settings import BadSettings, EngineSettings
from gateway.config.live import DocumentsRefused
from gateway.config.settings import parse_settings
from gateway.fleet.pools import Instance, store_id
from gateway.fleet.topology import FLEET, TOPOLOGY, LiveTopology, overlay, read_topology
from gateway.relay.failover import Failover
from gateway.relay.types import GenerationRequest
from policies.plans import Direct
from policies.types import Role
from policies.where import ANYWHERE
from tests.fakes.engine import FakeEngine
from tests.fakes.gates import HoldGate, Watch
from tests.fakes.index import KnownIndex
from tests.fakes.legs import collect
from tests.fakes.script import Script
from tests.policies.build import FixedRng

MODEL = "demo"
NAMES = ("p1", "rld1", "md1", "md2")
LINK = {"source": "a", "dest": "b", "bridge": "http://127.0.0.1:1"}


@dataclass(slots=True)
class Rig:
    """A topology over four engines, of which the configuration names the first three."""

    topology: LiveTopology
    engines: Mapping[str, FakeEngine]
    known: list[str]
    news: Watch
    joined: list[tuple[str, str]]
    """Links that were told of as others than before."""

    def apply(self, **body: Any) -> None:
        """Put a document in force."""
        text = msgspec.json.encode(body).decode()
        self.topology.apply([Document(TOPOLOGY, FLEET, 1, 1, 0, "ann", text)])

    def settings(self, name: str, **changes: Any) -> dict[str, Any]:
        """How an engine is configured."""
        return engine_settings(name, self.engines[name].url) | changes

    @property
    def offered(self) -> list[str]:
        """Instances that new requests may be given to."""
        pools = self.topology.pools
        return [one.spec.id for one in pools.instances if one.usable(pools.clock())]

    async def until_offered(self, *names: str) -> None:
        """Wait until exactly these are offered."""
        await self.news.until(lambda: self.offered == list(names))


def engine_settings(name: str, url: str) -> dict[str, Any]:
    """The configuration of an engine."""
    role = name.rstrip("0123456789").upper()
    return {"id": name, "role": role, "model": MODEL, "region": "b" if role == "MD" else "a", "url": url}


@asynccontextmanager
async def open_rig() -> AsyncIterator[Rig]:
    """Run engines and a topology that asks them very often."""
    async with (
        FakeEngine("p1") as p1,
        FakeEngine("rld1") as rld1,
        FakeEngine("md1") as md1,
        FakeEngine("md2") as md2,
    ):
        engines = dict(zip(NAMES, (p1, rld1, md1, md2), strict=True))
        settings = parse_settings(
            {
                "models": [{"name": MODEL, "path": "/nowhere", "kv_bytes_per_token": 1}],
                "engines": [engine_settings(name, engines[name].url) for name in NAMES[:3]],
                "links": [LINK],
                "health_interval_s": 0.01,
            }
        )
        known: list[str] = []
        news = Watch()

        def note(instance: Instance, _: EngineSettings) -> None:
            known.append(instance.spec.id)
            asyncio.get_running_loop().call_soon(news.changed)

        joined: list[tuple[str, str]] = []

        def note_link(source: str, dest: str) -> None:
            joined.append((source, dest))

        topology = LiveTopology(settings, KnownIndex({}), asyncio.get_running_loop().time, note, note_link)
        try:
            await topology.start()
            yield Rig(topology, engines, known, news, joined)
        finally:
            await topology.aclose()


async def test_added_engine_is_used_once_it_is_healthy() -> None:
    """OPS-05: an engine of the document is asked at once and offered when it answers; the others keep their state."""
    async with open_rig() as rig:
        old = rig.topology.pools["md1"]
        assert rig.offered == ["p1", "rld1", "md1"]
        rig.apply(engines={"md2": rig.settings("md2")})
        assert rig.offered == ["p1", "rld1", "md1"]
        await rig.until_offered("p1", "rld1", "md1", "md2")
        assert rig.topology.pools["md1"] is old
        assert rig.known.count("md1") == 1


async def test_removed_engine_gets_no_work_and_no_probes() -> None:
    """OPS-05, OPS-06: what runs on a removed engine goes on to its end; no probe comes any more; counters stay true."""
    async with open_rig() as rig:
        gate = HoldGate()
        rig.engines["rld1"].scripts.append(Script(holds={1: gate}))
        instance = rig.topology.pools["rld1"]
        leg = asyncio.create_task(run_leg(instance))
        await gate.arrivals()
        rig.apply(engines={"rld1": None})
        assert rig.offered == ["p1", "md1"] and instance.in_flight == 1
        assert [one.spec.id for one in rig.topology.pools.of_model(MODEL)] == ["p1", "md1"]
        assert rig.topology.pools["rld1"] is instance and not instance.alive(rig.topology.pools.clock())
        asked = rig.engines["rld1"].questions
        await rig.engines["md1"].questioned(rig.engines["md1"].questions + 5)
        assert rig.engines["rld1"].questions <= asked + 1
        gate.open()
        assert await leg == 5
        assert instance.in_flight == 0


async def test_drained_engine_ends_what_was_given_to_it() -> None:
    """A draining engine is offered to no new request, and still takes the legs of those that were given to it."""
    async with open_rig() as rig:
        rig.apply(draining=["md1"])
        assert rig.offered == ["p1", "rld1"]
        pools = rig.topology.pools
        request = GenerationRequest("r", MODEL, [1], 5)
        cast = Failover(Direct("p1", "md1", "same_region"), request, ANYWHERE, pools, FixedRng())
        assert cast.pick(Role.MD) is pools["md1"]
        assert await run_leg(pools["md1"]) == 5
        rig.apply()
        assert rig.offered == ["p1", "rld1", "md1"]


async def test_changed_engine_is_another_one() -> None:
    """An engine with other settings starts anew under its name, and the old connections end with their legs."""
    async with open_rig() as rig:
        old = rig.topology.pools["md1"]
        rig.apply(engines={"md1": rig.settings("md1", url=rig.engines["md2"].url, max_running=3)})
        assert rig.topology.pools["md1"] is not old and rig.offered == ["p1", "rld1"]
        await rig.until_offered("p1", "rld1", "md1")
        assert rig.topology.pools["md1"].spec.max_running == 3


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"engines": {"x": None}, "draining": ["x"]}, "no engine 'x'"),
        ({"engines": {"md9": engine_settings("md2", "http://x.invalid")}}, "stands there"),
        ({"engines": {"md2": engine_settings("md2", "http://x.invalid") | {"model": "y"}}}, "not in models"),
        ({"engines": {"md2": engine_settings("md2", "http://x.invalid") | {"api_key_env": "NOT_SET"}}}, "NOT_SET"),
        ({"engines": {"md1": None}}, "no engine is in region 'b'"),
        ({"links": {"b->a": LINK}}, "a->b stands there"),
        ({"engine": {}}, "unknown field"),
        ([], "Expected `object`"),
    ],
)
async def test_bad_document_changes_nothing(body: Any, reason: str) -> None:
    """A document that does not fit is refused whole, with the reason; instances and links stay the same objects."""
    async with open_rig() as rig:
        before = [*rig.topology.pools.instances, rig.topology.links.get("a", "b", MODEL)]
        text = msgspec.json.encode(body).decode()
        with pytest.raises(DocumentsRefused, match=reason):
            rig.topology.apply([Document(TOPOLOGY, FLEET, 1, 1, 0, "ann", text)])
        assert [*rig.topology.pools.instances, rig.topology.links.get("a", "b", MODEL)] == before
        assert rig.offered == ["p1", "rld1", "md1"]


async def test_links_change() -> None:
    """Links come and go with their stores in the index; one that stays is the same object, others are told of."""
    async with open_rig() as rig:
        old = rig.topology.links.get("a", "b", MODEL)
        assert rig.joined == []
        rig.apply(links={"b->a": {"source": "b", "dest": "a", "bridge": "http://127.0.0.1:1"}})
        assert rig.topology.links.get("a", "b", MODEL) is old and rig.topology.links.get("b", "a", MODEL) is not None
        assert rig.topology.links.views(MODEL).keys() == {("a", "b"), ("b", "a")}
        rig.apply(links={"a->b": None})
        assert rig.topology.links.views(MODEL) == {}
        assert rig.joined == [("b", "a")]
        rig.topology.apply([])
        assert rig.topology.links.views(MODEL).keys() == {("a", "b")}
        rig.apply(links={"a->b": LINK | {"chunk_tokens": 64}})
        assert rig.joined == [("b", "a"), ("a", "b"), ("a", "b")]


def test_overlay_keeps_the_order_and_the_rest() -> None:
    """A document without content leaves the settings as they are; store names follow the links."""
    settings = parse_settings(
        {
            "models": [{"name": MODEL, "path": "/nowhere", "kv_bytes_per_token": 1}],
            "engines": [engine_settings(name, "http://x.invalid") for name in NAMES[:3]],
            "links": [LINK],
        }
    )
    assert overlay(settings, read_topology({})) == settings
    assert store_id("b", MODEL) == "store:b:demo"
    with pytest.raises(BadSettings, match="none is left"):
        overlay(settings, read_topology({"engines": dict.fromkeys(NAMES[:3]), "links": {"a->b": None}}))


async def run_leg(instance: Instance) -> int:
    """Have five tokens made; how many came."""
    with instance.occupied():
        chunks = await collect(instance.engine, LegRequest("leg", MODEL, [1, 2, 3], 5))
    return sum(len(chunk.token_ids) for chunk in chunks)
