"""Time of one decision for a 64K-token prompt (4,096 blocks) over 64 instances, on one core, hashing apart."""

import random
import statistics
import time
from collections.abc import Callable, Sequence

from backends.engines.vllm import VllmEngine
from backends.kv.subscriber import EventSource
from backends.types import Capabilities, EngineLoad, LinkState
from gateway.config.rulebook import RuleBook
from gateway.fleet.kv_terms import KvBook
from gateway.fleet.kv_trust import KvTrust
from gateway.fleet.learning import Learning, Sessions
from gateway.fleet.links import Link, Links
from gateway.fleet.pools import Instance, InstanceSpec, ModelFacts, Pools
from gateway.index.hashing import BLOCK_TOKENS
from gateway.index.mirror import CacheDelta, Mirror
from gateway.index.types import CacheHit, CacheSpec
from gateway.relay.align import Aligner
from gateway.relay.router import Router
from gateway.relay.types import GenerationRequest
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.timeline import Timelines
from gateway.text.context import ContextLength
from policies.rules import Rules
from policies.types import Role
from policies.valley import PrefillCurve
from tests.fakes.index import KnownIndex
from tests.gateway.relay.stage import LinkedPath

MODEL = "m"
PROMPT_TOKENS = 65_536
CONTEXT_TOKENS = 1 << 21
BLOCKS = PROMPT_TOKENS // BLOCK_TOKENS
OTHER_BLOCKS = 16_000
ROLES = (Role.P,) * 24 + (Role.RLD,) * 8 + (Role.MD,) * 32
CURVE = PrefillCurve((256, 2048, 8192, 65536), (0.05, 0.2, 0.7, 6.0))
CHANGED = 6
"""Instances whose load has changed since the last decision: loads are read once a second, and a plan adds to three."""
ROUNDS = 400


class HashedIndex(KnownIndex):
    """Walks a real mirror for one prompt whose blocks are named already."""

    def __init__(self, mirror: Mirror, keys: Sequence[int]) -> None:
        super().__init__()
        self._mirror = mirror
        self._keys = keys

    def lookup(
        self, model: str, token_ids: Sequence[int], salt: str | None = None, lora: str | None = None
    ) -> dict[str, CacheHit]:
        """See ``PrefixIndex.lookup``."""
        return self._mirror.hits(model, self._keys, len(token_ids))


def build_index(
    rng: random.Random, roles: Sequence[Role] = ROLES, blocks: int = BLOCKS, other_blocks: int = OTHER_BLOCKS
) -> HashedIndex:
    """Instances that hold between none and all of a prompt's ``blocks``, among others."""
    mirror = Mirror(time.monotonic, lambda: None)
    keys = [rng.getrandbits(64) for _ in range(blocks)]
    for number, role in enumerate(roles):
        spec = CacheSpec(name_of(role, number), MODEL, BLOCK_TOKENS, (EventSource("tcp://127.0.0.1:1"),))
        mirror.admit(spec)
        others = [rng.getrandbits(64) for _ in range(other_blocks)]
        mirror.apply(spec.id, 0, CacheDelta(held=keys[: rng.randrange(blocks)] + others))
        mirror.set_known(spec.id, True)
    return HashedIndex(mirror, keys)


def name_of(role: Role, number: int) -> str:
    """Return an instance's name."""
    return f"{role.value.lower()}-{number}"


def build_instance(role: Role, number: int) -> Instance:
    """An idle, healthy instance; every second one of a role stands in another region."""
    name, region = name_of(role, number), f"{'b' if role is Role.MD else 'a'}{number % 2}"
    curve = CURVE if role is Role.P else None
    spec = InstanceSpec(name, role, MODEL, region, "http://127.0.0.1:1", 256, curve)
    known = Capabilities((MODEL,), CONTEXT_TOKENS, BLOCK_TOKENS, streams_token_ids=True)
    return Instance(spec, VllmEngine(name, spec.url), known, reachable=True)


def build_service(rng: random.Random, index: HashedIndex, roles: Sequence[Role] = ROLES) -> Router:
    """The gateway's own decision maker: two P regions, each linked to two MD regions."""
    links = [Link(a, b, LinkedPath(), KvBook(), 1e9) for a in ("a0", "a1") for b in ("b0", "b1")]
    metrics = Metrics()
    return Router(
        models={MODEL: ModelFacts(50_000, ContextLength(CONTEXT_TOKENS), cache_effective=True, kv_name=MODEL)},
        pools=Pools([build_instance(role, number) for number, role in enumerate(roles)], time.monotonic),
        links=Links(links, 60.0),
        trust=KvTrust(time.monotonic, metrics),
        index=index,
        rulebook=RuleBook(Rules()),
        learning=Learning(time.monotonic),
        sessions=Sessions(),
        aligner=Aligner(),
        timelines=Timelines(time.monotonic),
        metrics=metrics,
        rng=rng,
    )


def vary_loads(service: Router, rng: random.Random, instances: Sequence[Instance]) -> None:
    """Give some instances, and every link, another load."""
    for instance in instances:
        instance.load = EngineLoad(rng.randrange(128), 0, rng.random() * 0.9)
    for source in ("a0", "a1"):
        for dest in ("b0", "b1"):
            link = service.links.get(source, dest, MODEL)
            assert link is not None
            link.state = LinkState(1e9, rng.randrange(10**9), 0.03, up=True, wan_bytes_total=0)


def run() -> dict[str, float]:
    """Return medians over random loads: ``decision_us`` from the request to its plan, and the index walk in it."""
    rng = random.Random(7)
    service, rules = build_service(rng, build_index(rng)), Rules()
    request = GenerationRequest("r", MODEL, [0] * PROMPT_TOKENS, 1024)
    times: dict[str, list[float]] = {"decision_us": [], "decision_walk_us": []}

    def note(name: str, work: Callable[[], object]) -> None:
        start_s = time.thread_time()
        work()
        times[name].append((time.thread_time() - start_s) * 1e6)

    everybody = list(service.pools.instances)
    vary_loads(service, rng, everybody)
    for _ in range(ROUNDS):
        vary_loads(service, rng, rng.sample(everybody, CHANGED))
        note("decision_us", lambda: service.decide(request, rules))
        note("decision_walk_us", lambda: service.index.lookup(MODEL, request.prompt))
    return {name: statistics.median(values) for name, values in times.items()}


if __name__ == "__main__":
    print(run())
