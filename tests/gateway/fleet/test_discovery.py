"""Engines found by their pods' labels, at a Kubernetes API on a real socket."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from gateway.config.document_store import Document
from gateway.config.fleet_settings import BadSettings, DiscoverySettings
from gateway.config.settings import parse_settings
from gateway.fleet.discovery import Found, Pod, PodWatch, read_pod
from gateway.fleet.topology import FLEET, TOPOLOGY, LiveTopology
from tests.fakes.gates import Watch
from tests.fakes.index import KnownIndex
from tests.fakes.server import AppServer

MODELS = frozenset({"demo"})
TOKEN = "first-token"


def pod(name: str, role: str = "P", model: str = "demo", **changes: Any) -> dict[str, Any]:
    """A pod as the API shows it. ``ip``, ``labels``, ``annotations``, ``phase`` and ``deleted`` may be given."""
    labels = {"pdd.role": role, "pdd.model": model} | changes.get("labels", {})
    meta = {"name": name, "labels": labels, "annotations": changes.get("annotations", {}), "resourceVersion": "7"}
    if changes.get("deleted"):
        meta["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return {
        "metadata": meta,
        "status": {"podIP": changes.get("ip", "10.0.0.1"), "phase": changes.get("phase", "Running")},
    }


@dataclass(slots=True)
class Cluster:
    """The API: a list, and watches that a test feeds. ``status``: what a list is answered with."""

    pods: list[dict[str, Any]] = field(default_factory=list)
    status: int = 200
    lists: int = 0
    asked: list[tuple[dict[str, str], str]] = field(default_factory=list)
    events: asyncio.Queue[dict[str, Any] | None] = field(default_factory=asyncio.Queue)
    news: Watch = field(default_factory=Watch)

    async def answer(self, request: Request) -> Response:
        """List or watch."""
        self.asked.append((dict(request.query_params), request.headers.get("authorization", "")))
        self.news.changed()
        if request.query_params.get("watch"):
            return StreamingResponse(self._stream())
        self.lists += 1
        self.news.changed()
        body = {"metadata": {"resourceVersion": "5"}, "items": self.pods}
        return Response(orjson.dumps(body), self.status)

    async def _stream(self) -> AsyncIterator[bytes]:
        while (event := await self.events.get()) is not None:
            yield orjson.dumps(event) + b"\n"

    def tell(self, kind: str, about: dict[str, Any]) -> None:
        """Have the running watch say something."""
        self.events.put_nowait({"type": kind, "object": about})


@dataclass(slots=True)
class Heard:
    """What a watch told."""

    found: Found = field(default_factory=lambda: Found({}, frozenset()))
    news: Watch = field(default_factory=Watch)

    def __call__(self, found: Found) -> None:
        """Hear of a change."""
        self.found = found
        self.news.changed()

    async def until(self, *ids: str) -> None:
        """Wait until exactly these engines are known."""
        await self.news.until(lambda: set(self.found.engines) == set(ids))


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    """Where the token is."""
    path = tmp_path / "token"
    path.write_text(TOKEN + "\n", encoding="ascii")
    return path


def settings_of(server: AppServer, token_file: Path, **changes: Any) -> DiscoverySettings:
    """A cluster at ``server``, in region east."""
    fields: dict[str, Any] = {"region": "east", "namespace": "llm", "api": server.url, "token_file": str(token_file)}
    return DiscoverySettings(**(fields | {"ca_file": None} | changes))


@asynccontextmanager
async def watching(cluster: Cluster, token_file: Path, **changes: Any) -> AsyncIterator[Heard]:
    """Watch a cluster until the block ends."""
    app = Starlette(routes=[Route("/api/v1/namespaces/llm/pods", cluster.answer)])
    async with AppServer(app) as server:
        heard = Heard()
        pods = PodWatch(settings_of(server, token_file, **changes), MODELS, heard)
        await pods.start()
        try:
            yield heard
        finally:
            await pods.aclose()


async def test_pods_are_listed_at_start(token_file: Path) -> None:
    """Each pod with an address is an engine in the cluster's region, with the settings that all share."""
    cluster = Cluster(
        [pod("p-0", ip="10.0.0.1"), pod("md-0", "MD", ip="fd00::1"), pod("new", ip=""), pod("done", phase="Failed")]
    )
    async with watching(cluster, token_file, engine={"max_running": 7, "kv_events": "auto"}) as heard:
        assert set(heard.found.engines) == {"east/p-0", "east/md-0"}
        engine = heard.found.engines["east/md-0"]
        assert (engine.role, engine.region, engine.url) == ("MD", "east", "http://[fd00::1]:8000")
        assert (engine.max_running, engine.kv_events) == (7, "auto")
    query, authorization = cluster.asked[0]
    assert query == {"labelSelector": "pdd.role"}
    assert authorization == f"Bearer {TOKEN}"


async def test_changes_are_followed(token_file: Path) -> None:
    """Pods that come, move, leave and are gone change the engines at once, from the listed version on."""
    cluster = Cluster([pod("p-0")])
    async with watching(cluster, token_file) as heard:
        cluster.tell("ADDED", pod("r-0", "RLD", ip="10.0.0.2", annotations={"pdd.port": "9000"}))
        await heard.until("east/p-0", "east/r-0")
        assert heard.found.engines["east/r-0"].url == "http://10.0.0.2:9000"
        cluster.tell("MODIFIED", pod("p-0", deleted=True))
        await heard.news.until(lambda: heard.found.draining == {"east/p-0"})
        cluster.tell("BOOKMARK", {"metadata": {"resourceVersion": "9"}})
        cluster.tell("DELETED", pod("p-0"))
        await heard.until("east/r-0")
    watch = next(query for query, _ in cluster.asked if "watch" in query)
    assert watch["resourceVersion"] == "5"


async def test_a_watch_that_ends_goes_on_from_where_it_was(token_file: Path) -> None:
    """The API ends watches now and then; the next one begins at the last version, without a new list."""
    cluster = Cluster()
    async with watching(cluster, token_file) as heard:
        cluster.tell("ADDED", pod("p-0"))
        cluster.events.put_nowait(None)
        await cluster.news.until(lambda: sum("watch" in query for query, _ in cluster.asked) == 2)
        cluster.tell("ADDED", pod("p-1"))
        await heard.until("east/p-0", "east/p-1")
    assert cluster.lists == 1
    assert cluster.asked[-1][0]["resourceVersion"] == "7"


async def test_a_watch_that_is_too_old_lists_again(token_file: Path) -> None:
    """When the API has forgotten the version, everything is read anew; what is gone meanwhile is gone."""
    cluster = Cluster([pod("p-0")])
    async with watching(cluster, token_file) as heard:
        cluster.pods = [pod("p-1")]
        cluster.tell("ERROR", {"kind": "Status", "code": 410})
        await heard.until("east/p-1")


async def test_an_api_that_is_away_changes_nothing(token_file: Path) -> None:
    """Start goes on without the API, and engines come when it does."""
    cluster = Cluster([pod("p-0")], status=503)
    async with watching(cluster, token_file) as heard:
        assert not heard.found.engines
        cluster.status = 200
        await heard.until("east/p-0")


async def test_pods_that_do_not_fit_are_left_out(token_file: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A pod of another model or without a role is no engine, which is said once; the others are."""
    cluster = Cluster([pod("other", model="other"), pod("odd", role="X"), pod("p-0")])
    async with watching(cluster, token_file) as heard:
        assert set(heard.found.engines) == {"east/p-0"}
        cluster.tell("ADDED", pod("p-1"))
        await heard.until("east/p-0", "east/p-1")
    assert sum("is no engine" in record.message for record in caplog.records) == 2


async def test_tokens_are_read_anew(token_file: Path) -> None:
    """A token that was exchanged is used from the next request on."""
    cluster = Cluster()
    async with watching(cluster, token_file):
        await cluster.news.until(lambda: len(cluster.asked) == 2)
        await asyncio.to_thread(token_file.write_text, "second", encoding="ascii")
        cluster.events.put_nowait(None)
        await cluster.news.until(lambda: len(cluster.asked) == 3)
    assert [authorization for _, authorization in cluster.asked] == [f"Bearer {TOKEN}"] * 2 + ["Bearer second"]


@given(
    st.recursive(
        st.none() | st.text(max_size=5) | st.integers(), lambda inner: st.dictionaries(st.text(max_size=5), inner)
    )
)
def test_any_label_gives_an_engine_or_a_reason(value: Any) -> None:
    """Whatever labels say, a pod is an engine or is refused by name."""
    settings = DiscoverySettings(region="east", namespace="llm", api="http://api")
    found = Pod()
    found.metadata.labels = {"pdd.role": str(value), "pdd.model": "demo", "pdd.port": str(value)}
    found.status.pod_ip = "10.0.0.1"
    try:
        assert read_pod(found, settings, MODELS).role in ("P", "RLD", "MD")
    except BadSettings as error:
        assert str(error)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"engine": {"max_runing": 1}}, r"discovery\[0\].engine: .*max_runing"),
        ({"selector": ""}, "selector"),
        ({"namespace": "a/b"}, "namespace"),
    ],
)
def test_bad_settings_are_named(changes: dict[str, Any], named: str) -> None:
    """What cannot work stops the start, with the key's name."""
    model = {"name": "demo", "path": "/nowhere", "kv_bytes_per_token": 1}
    fields = {"region": "east", "namespace": "llm", "api": "http://api"} | changes
    with pytest.raises(BadSettings, match=named):
        parse_settings({"models": [model], "discovery": [fields]})


def test_outside_of_a_cluster_the_api_must_be_named() -> None:
    """A gateway that is in no pod says which keys it needs."""
    for missing, key in (("api", "namespace"), ("namespace", "api")):
        fields: dict[str, Any] = {"region": "east", "namespace": "llm", "api": "http://api"}
        del fields[missing]
        with pytest.raises(BadSettings, match=missing):
            PodWatch(DiscoverySettings(ca_file=None, **fields), MODELS, Heard())
        assert key in fields


def test_an_engine_or_a_way_to_find_one_is_needed() -> None:
    """A configuration with neither engines nor discovery is refused."""
    with pytest.raises(BadSettings, match="discovery"):
        parse_settings({"models": [{"name": "demo", "path": "/nowhere", "kv_bytes_per_token": 1}]})


async def test_found_engines_join_the_configured_ones() -> None:
    """OPS-05: found engines are offered, drained and removed as configured ones are; a document may change them."""
    model = {"name": "demo", "path": "/nowhere", "kv_bytes_per_token": 1}
    fixed = {"id": "p1", "role": "P", "model": "demo", "region": "east", "url": "http://127.0.0.1:1"}
    cluster = DiscoverySettings(region="east", namespace="llm", api="http://api", ca_file=None)
    settings = parse_settings(
        {
            "models": [model],
            "engines": [fixed],
            "discovery": [{"region": "east", "namespace": "llm", "api": "http://a"}],
        }
    )
    topology = LiveTopology(settings, KnownIndex({}), lambda: 0.0, lambda *_: None, lambda *_: None)

    def engine(name: str) -> Any:
        return cluster.make_engine(id=name, role="MD", model="demo", url="http://127.0.0.1:2")

    def known() -> dict[str, bool]:
        return {one.spec.id: one.draining for one in topology.pools.instances}

    topology.apply([Document(TOPOLOGY, FLEET, 1, 1, 0, "ann", '{"draining":["east/m-1"]}')])
    topology.note_found("east", Found({name: engine(name) for name in ("east/m-0", "east/m-1")}, frozenset()))
    assert known() == {"p1": False, "east/m-0": False, "east/m-1": True}
    kept = topology.pools["east/m-0"]
    topology.note_found("east", Found({"east/m-0": engine("east/m-0")}, frozenset({"east/m-0"})))
    assert known() == {"p1": False, "east/m-0": True}
    assert topology.pools["east/m-0"] is kept
    keyless = msgspec.structs.replace(engine("east/m-2"), api_key_env="PDD_TEST_NOT_SET")
    topology.note_found("east", Found({"east/m-2": keyless}, frozenset()))
    assert known() == {"p1": False, "east/m-0": True}
    topology.note_found("east", Found({}, frozenset()))
    assert known() == {"p1": False}
    await topology.aclose()
