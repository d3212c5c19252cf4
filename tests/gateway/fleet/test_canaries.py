"""How canaries tell instances apart, and what follows."""

from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from backends.errors import EngineUnavailable
from backends.types import Capabilities, EngineLoad, LegChunk, LegRequest, LegUsage
from gateway.fleet.canaries import LEAST_PROMPT_TOKENS, CanaryPath, CanaryWatch, NoWay, Pair, sort_out
from gateway.fleet.pools import Instance, InstanceSpec, Pools
from gateway.telemetry.metrics import Metrics
from gateway.text.model import ServedModel, load_model
from policies.types import Role
from tests.fakes.gates import Watch
from tests.fakes.kv_path import FakeKvPath
from tests.gateway.fleet.seams import MODEL, Clock
from tests.gateway.model_dir import model_dir

__all__ = ["model_dir"]

CHUNK_TOKENS = 200


@dataclass(slots=True)
class Weights:
    """An engine in process. ``version``: what its tokens depend on; ``minds_salts``: its cache does, as it should."""

    version: int = 1
    version_after_a_leg: int | None = None
    minds_salts: bool = True
    tells_cached: bool = True
    error: EngineUnavailable | None = None
    legs: list[LegRequest] = field(default_factory=list)
    cached: set[tuple[object, ...]] = field(default_factory=set)
    asked: Watch = field(default_factory=Watch)

    @property
    def id(self) -> str:
        """Its name."""
        return "engine"

    async def generate(self, leg: LegRequest) -> AsyncGenerator[LegChunk, None]:
        """Give tokens that depend on the prompt and the version."""
        self.legs.append(leg)
        self.asked.changed()
        if self.error is not None:
            raise self.error
        key = (tuple(leg.prompt), leg.cache_salt if self.minds_salts else None)
        cached = len(leg.prompt) if key in self.cached else 0
        self.cached.add(key)
        ids = tuple(hash((*leg.prompt, self.version, at)) % 500 for at in range(leg.max_tokens or 1))
        self.version = self.version_after_a_leg or self.version
        usage = LegUsage(len(leg.prompt), len(ids), cached if self.tells_cached else None)
        yield LegChunk(ids, finish_reason="length", usage=usage)

    async def probe(self) -> Capabilities:
        """Not asked here."""
        raise NotImplementedError

    async def load(self) -> EngineLoad:
        """Not asked here."""
        raise NotImplementedError

    async def aclose(self) -> None:
        """Nothing is open."""


@dataclass(slots=True)
class Fleet:
    """Instances p1, r1, m1 (and more, if a test adds them), a KV path, and the watch over them."""

    model: ServedModel
    path: FakeKvPath = field(default_factory=lambda: FakeKvPath(is_instant=True))
    instances: list[Instance] = field(default_factory=list)
    link_is_up: bool = True
    metrics: Metrics = field(default_factory=Metrics)

    def add(self, id_: str, engine: Weights, role: Role) -> Instance:
        """Add one that is up."""
        region = "b" if role is Role.MD else "a"
        spec = InstanceSpec(id_, role, MODEL, region, "http://engine.invalid", max_running=8)
        self.instances.append(Instance(spec, engine, reachable=True))
        return self.instances[-1]

    def find_crossing(self, model: str, prefill: Instance, decode: Instance) -> CanaryPath | None:
        """The one link there is."""
        if prefill.spec.region == decode.spec.region:
            return None
        if not self.link_is_up:
            raise NoWay("down")
        return CanaryPath(self.path, "lmcache", MODEL, CHUNK_TOKENS)

    def watch(self, interval_s: float = 600.0) -> CanaryWatch:
        """Make the watch."""
        pools = Pools(self.instances, Clock())
        return CanaryWatch(
            {MODEL: self.model}, pools, self.find_crossing, lambda: CHUNK_TOKENS, interval_s, self.metrics
        )

    def counted(self, result: str) -> float:
        """How many canaries ended so."""
        registry: CollectorRegistry = self.metrics.registry
        return registry.get_sample_value("pdd_canaries_total", {"result": result}) or 0.0


@pytest.fixture(scope="module")
def model(model_dir: Path) -> Iterator[ServedModel]:
    """A tokenizer."""
    served = load_model(MODEL, model_dir)
    yield served
    served.close()


@pytest.fixture
def fleet(model: ServedModel) -> Fleet:
    """Nobody yet."""
    return Fleet(model)


async def test_a_pair_that_is_alike_stays(fleet: Fleet) -> None:
    """Greedy ids that are equal leave an instance where it is; the KV of a whole chunk has crossed for the test."""
    prefill = Weights()
    fleet.add("p1", prefill, Role.P)
    main = fleet.add("m1", Weights(), Role.MD)
    await fleet.watch().check()
    assert (main.fingerprint, main.leaks_salts) == ("", False)
    (transfer,) = fleet.path.transfers
    assert transfer.request.token_ids == prefill.legs[0].prompt
    assert len(transfer.request.token_ids) > max(CHUNK_TOKENS, LEAST_PROMPT_TOKENS)
    assert fleet.counted("alike") == 1
    assert all(instance.in_flight == 0 for instance in fleet.instances)


async def test_one_that_differs_is_set_apart_and_comes_back(fleet: Fleet) -> None:
    """A decode instance with other greedy ids gets a fingerprint of its own, until they are equal again."""
    other = Weights(version=2)
    fleet.add("p1", Weights(), Role.P)
    relay, main = fleet.add("r1", Weights(), Role.RLD), fleet.add("m1", other, Role.MD)
    watch = fleet.watch()
    await watch.check()
    assert (relay.fingerprint, main.fingerprint) == ("", "m1")
    assert fleet.counted("different") == 1
    other.version = 1
    await watch.check()
    assert main.fingerprint == ""


async def test_a_difference_must_be_seen_twice(fleet: Fleet) -> None:
    """One odd answer, as rounding may give, is asked for again before anything follows."""
    fleet.add("p1", Weights(), Role.P)
    main = fleet.add("m1", Weights(version=2, version_after_a_leg=1), Role.MD)
    await fleet.watch().check()
    assert main.fingerprint == ""
    assert fleet.counted("alike") == 1
    assert fleet.counted("different") == 0


async def test_a_rolling_update_makes_two_groups(fleet: Fleet) -> None:
    """OPS-13: engines of the old and of the new version are paired among themselves only."""
    for number, version in enumerate((1, 2, 1, 2), 1):
        fleet.add(f"p{number}", Weights(version), Role.P)
        fleet.add(f"m{number}", Weights(version), Role.MD)
    watch = fleet.watch()
    for _ in range(4):
        await watch.check()
    prints = {instance.spec.id: instance.fingerprint for instance in fleet.instances}
    old = {prints[id_] for id_ in ("p1", "m1", "p3", "m3")}
    new = {prints[id_] for id_ in ("p2", "m2", "p4", "m4")}
    assert len(old) == len(new) == 1
    assert old != new


async def test_failures_prove_nothing(fleet: Fleet) -> None:
    """A dead engine or a link that is down changes no verdict."""
    dead = Weights(error=EngineUnavailable("gone"))
    fleet.add("p1", Weights(), Role.P)
    relay, main = fleet.add("r1", dead, Role.RLD), fleet.add("m1", Weights(version=2), Role.MD)
    fleet.link_is_up = False
    await fleet.watch().check()
    assert (relay.fingerprint, main.fingerprint) == ("", "")
    assert fleet.counted("alike") + fleet.counted("different") == 0
    assert fleet.counted("failed") == 3


async def test_a_store_that_drops_salts_is_found(fleet: Fleet) -> None:
    """TEN-05: cached tokens under a new salt show that KV of tenants is not kept apart, for as long as it is so."""
    careless = Weights(minds_salts=False)
    prefill = fleet.add("p1", Weights(), Role.P)
    main = fleet.add("m1", careless, Role.MD)
    watch = fleet.watch()
    await watch.check()
    assert (prefill.leaks_salts, main.leaks_salts) == (False, True)
    assert fleet.counted("leak") == 1
    careless.minds_salts = True
    await watch.check()
    assert not main.leaks_salts


async def test_an_engine_that_does_not_count_cached_tokens_is_not_accused(fleet: Fleet) -> None:
    """Where no cached tokens are told, nothing is known about salts."""
    fleet.add("p1", Weights(), Role.P)
    main = fleet.add("m1", Weights(minds_salts=False, tells_cached=False), Role.MD)
    await fleet.watch().check()
    assert not main.leaks_salts


async def test_a_new_process_is_checked_at_once(fleet: Fleet) -> None:
    """A restarted engine loses its verdict, and gets a new one without waiting for the interval."""
    engine = Weights(version=2)
    fleet.add("p1", Weights(), Role.P)
    main = fleet.add("m1", engine, Role.MD)
    watch = fleet.watch()
    await watch.check()
    assert main.fingerprint == "m1"
    engine.legs.clear()
    await watch.start()
    watch.notice(main)
    assert main.fingerprint == ""
    await engine.asked.until(lambda: len(engine.legs) >= 2)
    await watch.aclose()
    assert all(instance.in_flight == 0 for instance in fleet.instances)


async def test_only_what_is_new_is_checked(fleet: Fleet) -> None:
    """A new P is tried with one instance of each decode role, a new MD with one P."""
    fleet.add("p1", Weights(), Role.P)
    fleet.add("p2", Weights(), Role.P)
    mains = [fleet.add(f"m{number}", Weights(), Role.MD) for number in range(1, 4)]
    watch = fleet.watch()
    await watch.check({"p2"})
    assert [bool(main.engine.legs) for main in mains if isinstance(main.engine, Weights)] == [True, False, False]
    await watch.check({"m3"})
    assert [bool(main.engine.legs) for main in mains if isinstance(main.engine, Weights)] == [True, False, True]


IDS = ("p1", "p2", "p3", "m1", "m2", "r1")
PAIRS = st.tuples(st.sampled_from(IDS[:3]), st.sampled_from(IDS[3:]))


@given(st.dictionaries(PAIRS, st.booleans()))
def test_alike_share_and_different_do_not(alike: dict[Pair, bool]) -> None:
    """Pairs that are alike share a fingerprint; those that differ do not, unless they are alike by way of others."""
    prints = sort_out(IDS, alike)
    assert prints.keys() == set(IDS)
    assert "" in prints.values()
    joined = {id_: {id_} for id_ in IDS}
    for (first, second), is_alike in alike.items():
        if is_alike:
            union = joined[first] | joined[second]
            joined.update((id_, union) for id_ in union)
    for (first, second), is_alike in alike.items():
        assert (prints[first] == prints[second]) is (is_alike or second in joined[first])
