"""A relay service over fake engines on real sockets and a fake KV path: two of each role."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from backends.engines.vllm import VllmEngine
from backends.types import LinkState
from gateway.config.rulebook import RuleBook
from gateway.fleet.health import HealthWatch
from gateway.fleet.kv_terms import KvBook, KvTerms
from gateway.fleet.kv_trust import KvTrust
from gateway.fleet.learning import Learning, Sessions
from gateway.fleet.links import Link, Links
from gateway.fleet.pools import Instance, InstanceSpec, ModelFacts, Pools
from gateway.relay.align import Aligner, DropReason
from gateway.relay.answer import RelayAnswer
from gateway.relay.router import Router
from gateway.relay.types import Finish, GenerationRequest, Tokens
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.timeline import Timeline, Timelines
from gateway.text.context import ContextLength
from policies.rules import Rules, parse_rules
from policies.types import Role
from tests.fakes.engine import FakeEngine
from tests.fakes.gates import HoldGate
from tests.fakes.index import KnownIndex
from tests.fakes.kv_path import FakeKvPath
from tests.fakes.script import Script, continuation

PROMPT = list(range(100, 300))
MODEL = "demo"
CHUNK_TOKENS = 16

QUICK: dict[str, Any] = {
    "transfer_retry_backoff_s": 0.01,
    "transfer_retry_backoff_max_s": 0.05,
    "kv_least_load_tokens": 0,
}


class LinkedPath(FakeKvPath):
    """A fake KV path with a link to measure."""

    link_state = LinkState(rate_bytes_per_s=1e6, queued_bytes=0, rtt_s=0.03, up=True, wan_bytes_total=0)

    async def link(self) -> LinkState:
        """Say that the link is slow enough for a relay."""
        return self.link_state


class Arrival(HoldGate):
    """Where RLD stops for good; the KV that is on its way arrives then, and MD has to go on."""

    def __init__(self, path: LinkedPath) -> None:
        super().__init__()
        self._path = path

    async def hold(self) -> None:
        """Let the KV arrive."""
        for transfer in self._path.transfers:
            if transfer.state == "running":
                transfer.complete()
        await super().hold()


@dataclass(slots=True)
class Stage:
    """Everything a test looks at."""

    service: Router
    engines: dict[str, FakeEngine]
    path: LinkedPath
    aligner: Aligner
    index: KnownIndex
    pools: Pools
    dropped: list[DropReason]
    """Why the aligner dropped what it dropped."""
    _numbers: list[int] = field(default_factory=lambda: [0])

    def request(self, **changes: Any) -> GenerationRequest:
        """A new request for an answer to PROMPT."""
        self._numbers[0] += 1
        fields: dict[str, Any] = {"max_tokens": 40, "eos_token_ids": frozenset({2})}
        return GenerationRequest(f"r{self._numbers[0]}", MODEL, PROMPT, **(fields | changes))

    def ask(self, **changes: Any) -> RelayAnswer:
        """Start an answer to PROMPT."""
        return self.service.generate(self.request(**changes))

    async def quiet(self) -> None:
        """Wait until no engine and no transfer is busy."""
        await self.aligner.drained()
        await asyncio.gather(*(engine.idle() for engine in self.engines.values()), self.path.idle())


@asynccontextmanager
async def open_stage(
    rules: dict[str, Any] | None = None,
    *,
    ids: tuple[str, ...] = ("p1", "p2", "rld1", "rld2", "md1", "md2"),
    hits: dict[str, int] | None = None,
    path: LinkedPath | None = None,
    lease_s: float = 30.0,
    lends: bool = False,
    ranks: Mapping[str, tuple[int, ...]] | None = None,
    take: Callable[[Timeline], None] | None = None,
    max_model_len: int = 8192,
) -> AsyncIterator[Stage]:
    """Run the fakes and a service over them. The rules make every request a relay unless told otherwise.

    ``ranks``: engines with data-parallel ranks, and what of the prompt is known to be on each. ``take``: is told of
    each timeline that ended.
    """
    ranks = ranks or {}
    asked = {"direct_wan_bound_s": 0, "relay": QUICK} | (rules or {})
    path = path or LinkedPath()
    async with AsyncExitStack() as stack:
        engines = {
            id_: await stack.enter_async_context(
                FakeEngine(
                    id_,
                    script=_script_of(id_),
                    event_sources=_sources(len(ranks.get(id_, ()))),
                    max_model_len=max_model_len,
                )
            )
            for id_ in ids
        }
        loop = asyncio.get_running_loop()
        instances = [_instance(id_, engine) for id_, engine in engines.items()]
        for instance in instances:
            stack.push_async_callback(instance.engine.aclose)
        watch = HealthWatch(instances, 60.0, lambda _: None)
        await watch.start()
        stack.push_async_callback(watch.aclose)
        links = Links(
            [Link("a", "b", path, KvBook(KvTerms("lmcache", CHUNK_TOKENS, dtype="float32")), 1e6, lease_s, lends)], 60.0
        )
        await links.start()
        stack.push_async_callback(links.aclose)
        dropped: list[DropReason] = []
        aligner = Aligner(dropped.append)
        stack.push_async_callback(aligner.aclose)
        index = KnownIndex(dict.fromkeys(ids, 0) if hits is None else hits)
        index.hits |= {id_: max(tokens) for id_, tokens in ranks.items()}
        index.ranks |= ranks
        pools = Pools(instances, loop.time)
        context = ContextLength(told=lambda: pools.context_lengths(MODEL))
        metrics = Metrics()
        service = Router(
            models={MODEL: ModelFacts(4096, context=context, cache_effective=True, kv_name=MODEL)},
            pools=pools,
            links=links,
            trust=KvTrust(loop.time, metrics),
            index=index,
            rulebook=RuleBook(parse_rules(asked)),
            learning=Learning(loop.time),
            sessions=Sessions(),
            aligner=aligner,
            timelines=Timelines(loop.time, take=take),
            metrics=metrics,
            rng=random.Random(1),
        )
        yield Stage(service, engines, path, aligner, index, pools, dropped)


def _sources(ranks: int) -> dict[str, Any]:
    """What an engine with so many ranks tells of its KV events."""
    return {str(rank): {"endpoint": f"tcp://127.0.0.1:{1 + rank}"} for rank in range(ranks)}


def _script_of(id_: str) -> Script:
    """An MD takes the KV that crossed from its store, as it should."""
    return Script(cached_tokens=len(PROMPT) // CHUNK_TOKENS * CHUNK_TOKENS if id_.startswith("md") else 0)


def _instance(id_: str, engine: FakeEngine) -> Instance:
    role = Role[id_.rstrip("0123456789").upper()]
    spec = InstanceSpec(id_, role, MODEL, "b" if role is Role.MD else "a", engine.url, max_running=8)
    return Instance(spec, VllmEngine(id_, engine.url))


AnswerEvent = Tokens | Finish


class Collector:
    """A sink that keeps what it gets, and shows each thing to ``each``."""

    def __init__(self, each: Callable[[AnswerEvent], None] = lambda _: None) -> None:
        self.events: list[AnswerEvent] = []
        self.room = asyncio.Event()
        self.room.set()
        self._each = each

    def take(self, tokens: Tokens) -> None:
        """Keep tokens."""
        self._each(tokens)
        self.events.append(tokens)

    def keep_alive(self) -> None:
        """Nothing to keep."""

    def finish(self, finish: Finish) -> None:
        """Keep the end."""
        self._each(finish)
        self.events.append(finish)


async def read(answer: RelayAnswer, collector: Collector | None = None) -> list[AnswerEvent]:
    """Read an answer to its end."""
    collector = collector or Collector()
    try:
        await answer.run(collector)
    finally:
        await answer.aclose()
    return collector.events


def ids_of(events: list[AnswerEvent]) -> list[int]:
    """All ids, after checking that the positions fit."""
    ids: list[int] = []
    for event in events:
        if isinstance(event, Tokens):
            assert event.position == len(ids)
            ids += event.ids
    return ids


def roles_of(events: list[AnswerEvent]) -> list[str]:
    """Roles in the order in which they spoke."""
    roles: list[str] = []
    for event in events:
        if isinstance(event, Tokens) and roles[-1:] != [event.role]:
            roles.append(event.role)
    return roles


def finish_of(events: list[AnswerEvent]) -> Finish:
    """The one Finish, which is last."""
    finishes = [event for event in events if isinstance(event, Finish)]
    assert len(finishes) == 1 and events[-1] is finishes[0]
    return finishes[0]


def unsplit(tokens: int = 40) -> list[int]:
    """What one engine would say."""
    return continuation(PROMPT, tokens)


def rules_of(stage: Stage) -> Rules:
    """The rules in force."""
    return stage.service.rulebook.of("default")
