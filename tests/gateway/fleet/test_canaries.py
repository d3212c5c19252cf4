"""How canaries tell instances apart, and what follows."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from backends.base import Take
from backends.errors import EngineUnavailable
from backends.kv.bridge.keys import DIALECTS, KeyRequest
from backends.types import Capabilities, EngineLoad, FoundKey, LegChunk, LegRequest, LegUsage, StoreSide
from gateway.fleet import kv_probe
from gateway.fleet.canaries import CanaryWatch, NoWay, Pair, sort_out
from gateway.fleet.canary import LEAST_PROMPT_TOKENS, CanaryPath
from gateway.fleet.kv_sizes import KvSizes
from gateway.fleet.kv_terms import KvBook, KvTerms
from gateway.fleet.kv_trust import KvTrust
from gateway.fleet.links import Link
from gateway.fleet.pools import Instance, InstanceSpec, Pools
from gateway.telemetry.metrics import Metrics
from gateway.text.model import ServedModel, load_model
from policies.types import Role
from tests.fakes.gates import HoldGate, Watch
from tests.fakes.kv_path import FakeKvPath
from tests.gateway.fleet.seams import MODEL, Clock
from tests.gateway.model_dir import model_dir
from tests.gateway.relay.stage import LinkedPath

__all__ = ["model_dir"]

CHUNK_TOKENS = 200
FIRST_CHUNK_S = 0.05
TOKEN_BYTES = 4
NOW_S = Clock().now_s
PINNED = KvTerms(
    "lmcache",
    CHUNK_TOKENS,
    dtype="float32",
    pinned=frozenset({"dialect", "chunk_tokens", "hash_seed", "dtype", "world_size", "dest_world_size", "has_groups"}),
)


@dataclass(slots=True)
class Storing:
    """How an engine stores KV; as the link has it unless a test says otherwise."""

    dialect: str = "lmcache"
    model: str = MODEL
    chunk_tokens: int = CHUNK_TOKENS
    hash_seed: int | None = None
    dtype: str = "float32"
    world_size: int = 1
    token_bytes: int = TOKEN_BYTES
    minds_salts: bool = True
    stored: list[FoundKey] = field(default_factory=list)

    def take(self, leg: LegRequest) -> None:
        """Store a prompt."""
        request = KeyRequest(
            self.model,
            leg.prompt,
            self.chunk_tokens,
            leg.cache_salt if self.minds_salts else None,
            self.dtype,
            self.world_size,
            self.hash_seed,
        )
        dialect = DIALECTS[self.dialect]
        size = self.chunk_tokens * self.token_bytes // self.world_size
        self.stored += [FoundKey(dialect.value_key(key).decode(), size) for key in dialect.chunk_keys(request)]


@dataclass(slots=True)
class Weights:
    """An engine in process. ``version``: what its tokens depend on; ``minds_salts``: its cache does, as it should."""

    version: int = 1
    version_after_a_leg: int | None = None
    minds_salts: bool = True
    tells_cached: bool = True
    reads: FakeKvPath | None = None
    """It has in its store what came this way."""
    stores: Storing | None = None
    gate: HoldGate | None = None
    """Where its legs wait."""
    error: EngineUnavailable | TimeoutError | None = None
    legs: list[LegRequest] = field(default_factory=list)
    cached: set[tuple[object, ...]] = field(default_factory=set)
    asked: Watch = field(default_factory=Watch)

    @property
    def id(self) -> str:
        """Its name."""
        return "engine"

    async def generate(self, leg: LegRequest, take: Take) -> None:
        """Give tokens that depend on the prompt and the version."""
        self.legs.append(leg)
        self.asked.changed()
        if self.gate is not None:
            await self.gate.hold()
        if self.error is not None:
            raise self.error
        if self.stores is not None:
            self.stores.take(leg)
        key = (tuple(leg.prompt), leg.cache_salt if self.minds_salts else None)
        cached = len(leg.prompt) if key in self.cached else self._find_stored(leg)
        self.cached.add(key)
        ids: list[int] = []
        for _ in range(leg.max_tokens or 1):
            ids.append(hash((*leg.prompt, *ids, self.version)) % 500)
        self.version = self.version_after_a_leg or self.version
        usage = LegUsage(len(leg.prompt), len(ids), cached if self.tells_cached else None)
        take(LegChunk(tuple(ids), finish_reason="length", usage=usage))

    def _find_stored(self, leg: LegRequest) -> int:
        transfers = self.reads.transfers if self.reads is not None else ()
        for one in transfers:
            moved = list(one.request.token_ids)
            if moved == leg.prompt[: len(moved)] and one.request.salt == leg.cache_salt and one.state == "complete":
                return len(moved) // one.request.chunk_tokens * one.request.chunk_tokens
        return 0

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
    path: LinkedPath = field(default_factory=lambda: LinkedPath(is_instant=True))
    instances: list[Instance] = field(default_factory=list)
    link_is_up: bool = True
    md_reads: bool = True
    is_salted: bool = False
    kv: KvBook = field(default_factory=lambda: KvBook(PINNED))
    metrics: Metrics = field(default_factory=Metrics)
    trust: KvTrust = field(init=False)
    sizes: KvSizes = field(default_factory=KvSizes)

    def __post_init__(self) -> None:
        self.trust = KvTrust(Clock(), self.metrics)

    def add(self, id_: str, engine: Weights, role: Role) -> Instance:
        """Add one that is up."""
        region = "b" if role is Role.MD else "a"
        if role is Role.MD and engine.reads is None and self.md_reads:
            engine.reads = self.path
        spec = InstanceSpec(id_, role, MODEL, region, "http://engine.invalid", max_running=8)
        self.instances.append(Instance(spec, engine, reachable=True))
        return self.instances[-1]

    def find_crossing(self, model: str, prefill: Instance, decode: Instance) -> CanaryPath | None:
        """The one link there is."""
        if prefill.spec.region == decode.spec.region:
            return None
        if not self.link_is_up:
            raise NoWay("down")
        link = Link("a", "b", self.path, self.kv, 1e6, state=self.path.link_state)
        return CanaryPath(link, MODEL, MODEL, FIRST_CHUNK_S, TOKEN_BYTES, self.is_salted)

    def watch(self, interval_s: float = 600.0) -> CanaryWatch:
        """Make the watch."""
        pools = Pools(self.instances, Clock())
        return CanaryWatch(
            {MODEL: self.model},
            pools,
            self.find_crossing,
            lambda model: CHUNK_TOKENS,
            interval_s,
            self.metrics,
            self.trust,
            self.sizes,
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


async def test_kv_that_crossed_in_vain_gives_the_link_up(fleet: Fleet) -> None:
    """POL-102: equal ids without the KV that crossed are no success: the link is given up at once, the pair is not."""
    fleet.add("p1", Weights(), Role.P)
    fleet.md_reads = False
    engine = Weights()
    main = fleet.add("m1", engine, Role.MD)
    watch = fleet.watch()
    await watch.check()
    assert (fleet.counted("unread"), fleet.counted("alike"), main.fingerprint) == (1, 0, "")
    assert not fleet.trust.believes(("a", "b"), MODEL)
    (line,) = fleet.trust.list_lost([("a", "b")])
    assert f"m1 took 0 prompt tokens from a cache where KV of {CHUNK_TOKENS} had crossed" in line
    engine.reads = fleet.path
    await watch.check()
    assert fleet.counted("alike") == 1
    assert fleet.trust.believes(("a", "b"), MODEL)


async def test_an_engine_that_does_not_count_passes(fleet: Fleet) -> None:
    """Where no cached tokens are told nothing can be said against the KV."""
    fleet.add("p1", Weights(), Role.P)
    fleet.md_reads = False
    fleet.add("m1", Weights(tells_cached=False), Role.MD)
    await fleet.watch().check()
    assert (fleet.counted("unread"), fleet.counted("alike")) == (0, 1)


async def test_kv_that_never_shows_gives_the_link_up(fleet: Fleet) -> None:
    """POL-102: a canary whose first chunk is not in P's store in time fails with what the keys were made of."""
    fleet.path.is_instant = fleet.path.has_chunks = False
    fleet.add("p1", Weights(), Role.P)
    main = fleet.add("m1", Weights(), Role.MD)
    await fleet.watch().check()
    assert (fleet.counted("unseen"), fleet.counted("alike"), main.fingerprint) == (1, 0, "")
    (line,) = fleet.trust.list_lost([("a", "b")])
    assert "dialect lmcache, model name m, chunks of 200 tokens" in line


async def test_a_cut_link_says_nothing_of_the_keys(fleet: Fleet) -> None:
    """Chunks that cannot be looked for are no evidence."""
    fleet.path.is_instant = fleet.path.has_chunks = False
    fleet.path.link_state = msgspec.structs.replace(fleet.path.link_state, up=False)
    fleet.add("p1", Weights(), Role.P)
    fleet.add("m1", Weights(), Role.MD)
    await fleet.watch().check()
    assert (fleet.counted("unseen"), fleet.counted("failed")) == (0, 1)
    assert fleet.trust.believes(("a", "b"), MODEL)


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


async def test_a_new_process_is_held_until_its_first_verdict(fleet: Fleet) -> None:
    """A new engine shares no answer before a canary has come back, for a bounded time."""
    prefill, main = fleet.add("p1", Weights(), Role.P), fleet.add("m1", Weights(), Role.MD)
    watch = fleet.watch()
    watch.notice(main)
    assert not main.is_apart(NOW_S)
    watch.hold_new(20.0)
    for instance in (prefill, main):
        watch.notice(instance)
        assert instance.is_apart(NOW_S)
        assert (instance.view(NOW_S).judged, instance.view(NOW_S).fingerprint) == (False, f"?{instance.spec.id}")
        assert instance.view(NOW_S).healthy
    assert [line.rpartition(":")[0] for line in watch.list_odd()] == ["m: P p1 is new", "m: MD m1 is new"]
    await watch.check({"p1", "m1"})
    assert not prefill.is_apart(NOW_S) and not main.is_apart(NOW_S)
    assert main.view(NOW_S).judged
    assert watch.list_odd() == []


async def test_without_a_verdict_the_hold_ends_by_itself(fleet: Fleet) -> None:
    """Canaries that cannot be sent keep nobody apart for longer than was agreed, and are tried again soon."""
    prefill, main = fleet.add("p1", Weights(), Role.P), fleet.add("m1", Weights(), Role.MD)
    fleet.link_is_up = False
    watch = fleet.watch()
    watch.hold_new(20.0)
    for instance in (prefill, main):
        watch.notice(instance)
    await watch.check({"p1", "m1"})
    assert main.is_apart(NOW_S + 19.9) and not main.is_apart(NOW_S + 20)
    fleet.link_is_up = True
    await watch.start()
    assert isinstance(main.engine, Weights)
    await main.engine.asked.until(lambda: bool(fleet.counted("alike")))
    await watch.aclose()


async def test_a_stuck_one_is_named_and_left_out(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    """An MD whose canary takes too long, while others come back, takes no part in split answers until it does."""
    slow = Weights(error=TimeoutError())
    prefill = fleet.add("p1", Weights(), Role.P)
    main, other = fleet.add("m1", slow, Role.MD), fleet.add("m2", Weights(), Role.MD)
    watch = fleet.watch()
    await watch.check()
    assert (prefill.stuck, main.stuck, other.stuck) == (False, True, False)
    assert "m1 is left out" in caplog.text
    (line,) = watch.list_odd()
    assert "MD m1 is left out" in line
    slow.error = None
    await watch.check()
    assert not main.stuck


async def test_nobody_is_left_out_when_all_are_slow(fleet: Fleet) -> None:
    """Where no canary comes back the fault may be anybody's."""
    fleet.add("p1", Weights(error=TimeoutError()), Role.P)
    mains = [fleet.add(f"m{number}", Weights(), Role.MD) for number in (1, 2)]
    await fleet.watch().check()
    assert not any(main.stuck for main in mains)


async def test_canaries_run_beside_each_other(fleet: Fleet) -> None:
    """One that hangs holds up no other."""
    gate = HoldGate()
    hanging = Weights(gate=gate)
    fleet.add("p1", Weights(), Role.P)
    fleet.add("m1", hanging, Role.MD)
    other = Weights()
    fleet.add("m2", other, Role.MD)
    checking = asyncio.create_task(fleet.watch().check())
    await gate.arrivals()
    await other.asked.until(lambda: fleet.counted("alike") == 1)
    gate.open()
    await checking
    assert fleet.counted("alike") == 2


class Keyed(LinkedPath):
    """A path that shows what the engines of its two sides have stored."""

    def __init__(self, stored: dict[StoreSide, list[FoundKey]]) -> None:
        super().__init__(is_instant=True)
        self.stored = stored

    async def find_keys(self, side: StoreSide, markers: Sequence[str]) -> list[FoundKey]:
        """See ``ShowsKeys``."""
        return [one for one in self.stored[side] if any(marker in one.key for marker in markers)]


def keyed(fleet: Fleet, p: Storing, md: Storing) -> Keyed:
    """Give the fleet a P and an MD that store, and a path that shows what they did."""
    fleet.path = path = Keyed({"source": p.stored, "dest": md.stored})
    fleet.add("p1", Weights(stores=p), Role.P)
    fleet.add("m1", Weights(stores=md), Role.MD)
    return path


async def test_keys_that_fit_are_moved(fleet: Fleet) -> None:
    """Where both engines store what the link says, KV crosses, and the link is believed."""
    path = keyed(fleet, Storing(), Storing())
    await fleet.watch().check()
    assert (fleet.counted("alike"), fleet.counted("odd_keys"), len(path.transfers)) == (1, 0, 1)
    assert fleet.trust.list_lost([("a", "b")]) == []


@pytest.mark.parametrize(
    ("p", "md", "words"),
    [
        (Storing(), Storing(chunk_tokens=128), "m1 stores chunks of 128 tokens, the link says 200"),
        (Storing(), Storing(dtype="bfloat16"), "m1 stores KV of dtype bfloat16, the link says float"),
        (Storing(model="/models/m"), Storing(), "p1 stores under the model name /models/m"),
        (Storing(dialect="lmcache-mp"), Storing(), "p1 spells its keys in dialect lmcache-mp, the link in lmcache"),
        (Storing(hash_seed=987_654), Storing(), "p1 chains its hashes from a seed that is not known"),
        (Storing(world_size=2), Storing(), "p1 stores KV of 2 ranks, the link says 1"),
        (Storing(token_bytes=2), Storing(token_bytes=1), "p1 stores 2 bytes of KV a token, m1 1"),
    ],
)
async def test_keys_that_do_not_fit_are_named(fleet: Fleet, p: Storing, md: Storing, words: str) -> None:
    """POL-102: what the stores show against the link is named with both values, and nothing is moved."""
    path = keyed(fleet, p, md)
    await fleet.watch().check()
    assert (fleet.counted("odd_keys"), path.transfers) == (1, [])
    (line,) = fleet.trust.list_lost([("a", "b")])
    assert words in line
    assert not fleet.trust.believes(("a", "b"), MODEL)
    assert fleet.counted("alike") == 1


async def test_a_size_that_is_used_is_what_plans_count_with(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    """POL-102: a figure of the settings that engines do not bear out is named, and replaced once KV was used."""
    keyed(fleet, Storing(token_bytes=16), Storing(token_bytes=16))
    await fleet.watch().check()
    assert fleet.sizes.of(MODEL, TOKEN_BYTES) == 16
    assert "16 bytes of KV a token are stored where 4 were expected" in caplog.text
    assert fleet.trust.list_lost([("a", "b")]) == []


async def test_lost_salts_stop_salted_answers_only(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that leaves salts out of its keys is named where salts are used; prompts without go on."""
    monkeypatch.setattr(kv_probe, "LOOK_S", 0.02)
    fleet.is_salted = True
    keyed(fleet, Storing(minds_salts=False), Storing())
    await fleet.watch().check()
    (line,) = fleet.trust.list_lost([("a", "b")])
    assert "m (with a salt)" in line and "p1 leaves the cache salt out of its keys" in line
    assert fleet.trust.believes(("a", "b"), MODEL)
    assert not fleet.trust.believes(("a", "b"), MODEL, is_salted=True)


async def test_salted_kv_is_tried_where_salts_are_used(fleet: Fleet) -> None:
    """A second canary crosses under a salt, as tenants' prompts do."""
    fleet.is_salted = True
    path = keyed(fleet, Storing(), Storing())
    await fleet.watch().check()
    assert [transfer.request.salt is None for transfer in path.transfers] == [True, False]
    assert fleet.counted("alike") == 2


async def test_a_change_between_regions_is_checked_at_once(fleet: Fleet) -> None:
    """Another link makes its regions' engines go through their canaries again, without waiting for the interval."""
    path = keyed(fleet, Storing(), Storing())
    watch = fleet.watch()
    await watch.start()
    watch.recheck(("a", "b"))
    await path.opened()
    await watch.aclose()


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


async def test_what_settings_leave_open_is_learnt(fleet: Fleet) -> None:
    """Dialect, chunk size and dtype of both stores hold in place of the defaults, and are what the canary moves by."""
    fleet.kv = KvBook()
    path = keyed(fleet, Storing(chunk_tokens=208), Storing(chunk_tokens=208))
    await fleet.watch().check()
    kv = fleet.kv.of(MODEL)
    assert (kv.dialect, kv.chunk_tokens, kv.hash_seed, kv.dtype) == ("lmcache", 208, None, "float32")
    (transfer,) = path.transfers
    asked = transfer.request
    assert (asked.dialect, asked.chunk_tokens, asked.dtype, asked.kv_layout) == ("lmcache", 208, "float32", "split")
    assert kv.at("source", MODEL).describe().endswith("learnt of p1 and m1")
    assert (fleet.counted("alike"), fleet.trust.list_lost([("a", "b")])) == (1, [])


async def test_large_chunks_are_learnt(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt that leaves nothing in the stores is followed by a longer one; with a size that is given it is not."""
    monkeypatch.setattr(kv_probe, "LOOK_S", 0.02)
    fleet.kv = KvBook()
    p = Storing(chunk_tokens=1024)
    keyed(fleet, p, Storing(chunk_tokens=1024))
    await fleet.watch().check()
    assert fleet.kv.of(MODEL).chunk_tokens == 1024
    fleet.kv = KvBook(PINNED)
    p.stored.clear()
    await fleet.watch().check()
    assert p.stored == []


async def test_what_is_given_is_not_learnt(fleet: Fleet) -> None:
    """POL-102: against a pinned value the stores' own stops the link, and both are named; the rest is learnt."""
    fleet.kv = KvBook(KvTerms(chunk_tokens=CHUNK_TOKENS, pinned=frozenset({"chunk_tokens"})))
    path = keyed(fleet, Storing(chunk_tokens=208), Storing(chunk_tokens=208))
    await fleet.watch().check()
    (line,) = fleet.trust.list_lost([("a", "b")])
    assert "p1 stores chunks of 208 tokens, the link says 200" in line and "dialect" not in line
    assert path.transfers == []


async def test_engines_of_one_region_that_differ_are_named(fleet: Fleet) -> None:
    """The one that was read first is believed; one that stores otherwise stops the link, with both values."""
    fleet.kv = KvBook()
    one, other = Storing(chunk_tokens=208), Storing(chunk_tokens=320)
    other.stored = one.stored
    keyed(fleet, one, Storing(chunk_tokens=208))
    watch = fleet.watch()
    await watch.check({"m1"})
    fleet.add("p2", Weights(stores=other), Role.P)
    await watch.check({"p2"})
    (line,) = fleet.trust.list_lost([("a", "b")])
    assert "p2 stores chunks of 320 tokens, p1 says 208 (chunk size)" in line
    assert fleet.kv.of(MODEL).chunk_tokens == 208


async def test_what_new_processes_store_is_learnt_anew(fleet: Fleet) -> None:
    """After both engines were restarted with other chunks these are moved; until then the old ones hold."""
    fleet.kv = KvBook()
    p, md = Storing(chunk_tokens=208), Storing(chunk_tokens=208)
    path = keyed(fleet, p, md)
    watch = fleet.watch()
    await watch.check()
    p.chunk_tokens = md.chunk_tokens = 320
    for id_ in ("p1", "m1"):
        fleet.kv.forget(id_)
    assert fleet.kv.of(MODEL).chunk_tokens == 208
    await watch.check()
    assert fleet.kv.of(MODEL).chunk_tokens == 320
    assert [transfer.request.chunk_tokens for transfer in path.transfers] == [208, 320]
    assert fleet.trust.list_lost([("a", "b")]) == []
