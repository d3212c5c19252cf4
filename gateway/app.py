"""Composition root: builds everything from the settings, starts it, and ends it in reverse."""

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Self

from starlette.routing import Route
from starlette.types import ASGIApp

from backends.engines.external import Provider
from backends.transport.valkey import EmbeddedValkey, ValkeyUnavailable
from gateway.api.app import ApiState, build_admin_app, build_app
from gateway.api.endpoint import RequestLimits
from gateway.api.shared_turns import RedisTurns
from gateway.api.stored import ResponseMemory
from gateway.auth.exposure import find_admin_access
from gateway.auth.sealed import SealedStore
from gateway.auth.secrets import find_secret
from gateway.config.fleet_settings import BadSettings, DiscoverySettings, EngineSettings
from gateway.config.live import LiveDocuments
from gateway.config.rulebook import RULES, RuleBook
from gateway.config.settings import Settings, find_otlp, find_redis
from gateway.fleet.build import build_cache_spec, load_models, model_facts
from gateway.fleet.canaries import CanaryWatch, NoWay
from gateway.fleet.canary import CanaryPath
from gateway.fleet.discovery import PodWatch
from gateway.fleet.kv_sizes import KvSizes
from gateway.fleet.kv_trust import KvTrust
from gateway.fleet.learning import Learning, Sessions
from gateway.fleet.ledger import Ledger
from gateway.fleet.pools import Instance
from gateway.fleet.reading import Readings
from gateway.fleet.topology import TOPOLOGY, LiveTopology
from gateway.http.cors import Cors
from gateway.index.metered import MeteredIndex
from gateway.index.types import PrefixIndex
from gateway.limits.overload import LoadGuard
from gateway.operator.explain import Explainer
from gateway.operator.routes import Operator, operator_routes
from gateway.operator.view import OperatorView
from gateway.passthrough.build import build_overflow, build_passing
from gateway.passthrough.endpoint import pass_routes
from gateway.passthrough.upstreams import UpstreamWatch
from gateway.redis.client import SharedRedis
from gateway.relay.align import Aligner
from gateway.relay.router import Router
from gateway.status import Status
from gateway.tasks import TaskSet, run_every
from gateway.telemetry.access import AccessLog, AccessWriter
from gateway.telemetry.loop import LoopWatch
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.sender import SpanSender, open_sender
from gateway.telemetry.siblings import Siblings
from gateway.telemetry.timeline import Timelines
from gateway.telemetry.trace import Tracer
from gateway.tenancy import Tenancy, open_index
from gateway.text.turns import TurnMemory
from policies.rules import RelayRules

log = logging.getLogger(__name__)

PRIVATE_REDIS_BYTES = 512 << 20
PRIVATE_STATE = "no redis_url: state is in a private server and ends with this process"
PAGE_TIMEOUT_S = 2.0
TRACE_TIMEOUT_S = 5.0
RESPONSES_TIMEOUT_S = 2.0
TURNS_TIMEOUT_S = 0.5
"""A prompt waits for it."""


@asynccontextmanager
async def open_gateway(
    settings: Settings, has_rules: bool = False, siblings: Siblings | None = None
) -> AsyncIterator["Gateway"]:
    """Run a gateway until the block ends. Raises BadSettings."""
    async with open_redis(settings) as redis:
        if find_redis(settings) is None:
            log.warning(PRIVATE_STATE)
        index = open_index(settings, redis)
        async with Gateway(settings, index, redis, has_rules, siblings=siblings) as gateway:
            yield gateway


@asynccontextmanager
async def open_redis(settings: Settings) -> AsyncIterator[SharedRedis]:
    """Reach the Redis that is named, or a private Valkey that ends with the block. Raises BadSettings."""
    async with find_or_run_redis(settings) as redis_url, SharedRedis(redis_url) as redis:
        yield redis


@asynccontextmanager
async def find_or_run_redis(settings: Settings) -> AsyncIterator[str]:
    """Give the address of the Redis that is named, or of a private Valkey. Raises BadSettings."""
    redis_url = find_redis(settings)
    if redis_url is not None:
        yield redis_url
        return
    async with AsyncExitStack() as stack:
        try:
            server = await stack.enter_async_context(EmbeddedValkey(max_memory_bytes=PRIVATE_REDIS_BYTES))
        except ValkeyUnavailable as error:
            raise BadSettings(f"redis_url: not set, and no private server can be started: {error}") from None
        yield server.url


def open_spans(settings: Settings, metrics: Metrics) -> SpanSender | None:
    """Return what sends spans; None where no receiver is named. Raises BadSettings."""
    endpoint = find_otlp(settings)
    try:
        return None if endpoint is None else open_sender(endpoint, version("pdd-gateway"), metrics)
    except ImportError as error:
        message = f"otlp_endpoint: OpenTelemetry is needed (in a checkout: pip install '.[otel]'): {error}"
        raise BadSettings(message) from None


def open_sealed(
    settings: Settings, redis: SharedRedis, key: str, kind: str, keep_s: int | None, timeout_s: float
) -> SealedStore | None:
    """Return where something is kept for so long, as the setting ``key`` wants; None: nowhere. Raises BadSettings."""
    if keep_s is None:
        return None
    secret = find_secret(settings.auth)
    if secret is None:
        raise BadSettings(f"{key}: it is sealed with a secret: set auth.secret_env or auth.secret_file")
    return SealedStore(redis.client(kind, timeout_s), secret, kind, keep_s)


def open_responses(settings: Settings, redis: SharedRedis) -> ResponseMemory:
    """Return what keeps responses. Raises BadSettings."""
    keep_s = settings.responses.keep_s
    return ResponseMemory(open_sealed(settings, redis, "responses.keep_s", "response", keep_s, RESPONSES_TIMEOUT_S))


def open_turns(settings: Settings, redis: SharedRedis) -> RedisTurns | None:
    """Return how processes share turns; None: they do not. Raises BadSettings."""
    store = open_sealed(settings, redis, "turns.share_s", "turn", settings.turns.share_s, TURNS_TIMEOUT_S)
    return None if store is None else RedisTurns(store, time.monotonic)


class Gateway:
    """Everything of one gateway process; ``app`` is served while the object is entered, and ``admin_app`` where the
    settings give it an address.

    ``has_rules``: the settings' rules may be used also before Redis was asked for others. ``provider`` asks external
    models, in place of LiteLLM. ``siblings``: the other workers of the same command. Raises BadSettings.
    """

    def __init__(
        self,
        settings: Settings,
        index: PrefixIndex,
        redis: SharedRedis,
        has_rules: bool = False,
        provider: Provider | None = None,
        siblings: Siblings | None = None,
    ) -> None:
        self._settings = settings
        self._siblings = siblings
        self.served = load_models(settings)
        self.responses = open_responses(settings, redis)
        self.turns = open_turns(settings, redis)
        self._stack = AsyncExitStack()
        self._tasks = TaskSet()
        self.metrics = Metrics()
        load = LoadGuard()
        self.loop_watch = LoopWatch(self.metrics.registry, on_tick=load.note)
        self.live = self._follow_documents(redis)
        self.rulebook = RuleBook(settings.rules, known=has_rules)
        self.live.follow(self.rulebook.apply, RULES, prepare=self.rulebook.prepare)
        self.aligner = Aligner(self.metrics.kv.count_aligning_dropped)
        self._spans = open_spans(settings, self.metrics)
        self.timelines = Timelines(time.monotonic, take=None if self._spans is None else self._spans.take)
        self.index = MeteredIndex(index, self.metrics.registry)
        self.trust, self.sizes = KvTrust(time.monotonic, self.metrics), KvSizes()
        self.topology = LiveTopology(settings, self.index, time.monotonic, self._on_known, self._on_link)
        self.pools, self.links = self.topology.pools, self.topology.links
        for name, model in self.served.items():
            model.context.follow(partial(self.pools.context_lengths, name))
        readers = {model.name: model.reader for model in settings.models}
        self.readings = Readings(self.served, readers, self.pools)
        self._discovery = [self._discover(cluster) for cluster in settings.discovery]
        self.live.follow(self.topology.apply, TOPOLOGY)
        self.live.list_fleet = lambda: self.topology.names
        self.canaries = CanaryWatch(
            self.served,
            self.pools,
            self.find_crossing,
            self.canary_tokens,
            settings.canary_interval_s,
            self.metrics,
            self.trust,
            self.sizes,
        )
        self.learning = Learning(time.monotonic)
        self.ledger = Ledger(redis, self.learning, list(self.served))
        self.tenancy = Tenancy(
            settings, redis, self.live, self.metrics, self.rulebook.of, self._count_processes, self._places, load
        )
        self.tracer = Tracer(
            redis.client("trace", TRACE_TIMEOUT_S),
            find_secret(settings.auth),
            None if settings.trace.file is None else Path(settings.trace.file),
            settings.trace.most_rows,
        )
        self.service = Router(
            models=model_facts(settings, self.served),
            pools=self.pools,
            links=self.links,
            trust=self.trust,
            index=self.index,
            rulebook=self.rulebook,
            learning=self.learning,
            sessions=Sessions(),
            aligner=self.aligner,
            timelines=self.timelines,
            metrics=self.metrics,
            rng=random.Random(),
            note_use=self.tenancy.note_use,
            name_tenant=self.tenancy.access.salts.name_tenant,
            sizes=self.sizes,
            tracer=self.tracer,
        )
        self.explainer = Explainer(self.served, self.tenancy, self.service)
        self.passing = build_passing(
            settings,
            self.pools,
            self.served,
            self.timelines,
            self.metrics,
            self.tenancy.access.admission,
            self.tracer,
        )
        self.status = self._make_status(redis)
        self.admin_access = find_admin_access(settings)
        self.overflow = build_overflow(settings, self.pools, self.timelines, self.metrics, provider)
        self.view = OperatorView(
            self.status, self.service, redis.client("page", PAGE_TIMEOUT_S), version("pdd-gateway")
        )
        operator = self._make_operator()
        target = settings.access_log
        self._access_writer = None if target is None else AccessWriter(target)
        self.app: ASGIApp = self._build_app(operator_routes(operator, self.admin_access.beside_api))
        own = self.admin_access.own
        self.admin_app: ASGIApp = build_admin_app(self.status.pages, own, operator_routes(operator, own))

    async def __aenter__(self) -> Self:
        stack = self._stack
        await self._start_access_log()
        self.loop_watch.start()
        stack.callback(self.loop_watch.close)
        await self._start_index()
        await self.ledger.start()
        stack.push_async_callback(self.ledger.aclose)
        await self.tracer.start()
        stack.push_async_callback(self.tracer.aclose)
        if self._spans is not None:
            await self._spans.start()
            stack.push_async_callback(self._spans.aclose)
        await self.tenancy.start()
        stack.push_async_callback(self.tenancy.aclose)
        await self.live.start()
        stack.push_async_callback(self.live.aclose)
        if self._settings.canary_interval_s:
            self.canaries.hold_new(self._settings.canary_hold_s)
        await self._watch_fleet()
        stack.push_async_callback(self.aligner.aclose)
        if self._settings.canary_interval_s:
            await self.canaries.start()
            stack.push_async_callback(self.canaries.aclose)
        await self.readings.start()
        stack.push_async_callback(self.readings.aclose)
        upstreams = UpstreamWatch(self.passing.servers.upstreams, self._settings.health_interval_s)
        await upstreams.start()
        stack.push_async_callback(upstreams.aclose)
        stack.push_async_callback(self.passing.servers.aclose)
        if self._siblings is not None:
            await self._siblings.start(self.status.answer_sibling)
            stack.push_async_callback(self._siblings.aclose)
        self._tasks.start("page", run_every(1.0, self.view.sample))
        stack.push_async_callback(self._tasks.aclose)
        for line in self.status.find_missing():
            log.warning("not ready: %s", line)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    @asynccontextmanager
    async def observing(self) -> AsyncIterator[None]:
        """Look at the fleet and the index, in place of entering it: no other process learns of this one."""
        async with self._stack:
            await self._start_index()
            await self._watch_fleet()
            yield

    async def _start_index(self) -> None:
        for served in self.served.values():
            self._stack.callback(served.close)
        await self.index.start()
        self._stack.push_async_callback(self.index.aclose)
        if self.turns is not None:
            self._stack.push_async_callback(self.turns.aclose)

    async def _watch_fleet(self) -> None:
        self._stack.push_async_callback(self.topology.aclose)
        await self.topology.start()
        for pods in self._discovery:
            await pods.start()
            self._stack.push_async_callback(pods.aclose)

    def drain(self) -> None:
        """Say at ``/ready`` that no more requests are wanted; those that run go on."""
        self.status.is_draining = True

    def cut(self) -> None:
        """End the answers that still run, and tell their clients."""
        self.tenancy.access.clients.cut_off()

    def _make_status(self, redis: SharedRedis) -> Status:
        return Status(
            served=self.served,
            readings=self.readings,
            pools=self.pools,
            links=self.links,
            trust=self.trust,
            sizes=self.sizes,
            canaries=self.canaries,
            aligner=self.aligner,
            passing=self.passing,
            redis=redis,
            ledger=self.ledger,
            learning=self.learning,
            live=self.live,
            rulebook=self.rulebook,
            tenancy=self.tenancy,
            loop_watch=self.loop_watch,
            timelines=self.timelines,
            metrics=self.metrics,
            siblings=self._siblings,
        )

    def _make_operator(self) -> Operator:
        return Operator(
            settings=self._settings,
            view=self.view,
            router=self.service,
            timelines=self.timelines,
            explainer=self.explainer,
            store=self.live.store,
            is_draining=lambda: self.status.is_draining,
        )

    def _build_app(self, pages: Sequence[Route]) -> ASGIApp:
        limits = RequestLimits(
            body_bytes=self._settings.limits.max_body_bytes,
            body_timeout_s=self._settings.limits.body_timeout_s,
            write_timeout_s=self._settings.limits.write_timeout_s,
            beside_bytes=self._settings.limits.max_beside_bytes,
        )
        state = ApiState(
            models=self.served,
            generator=self.service,
            created=int(time.time()),
            access=self.tenancy.access,
            pages=self.status.pages,
            admin_auth=self.admin_access.beside_api,
            limits=limits,
            passing=self.passing if self._settings.upstreams else None,
            overflow=self.overflow if self._settings.external else None,
            note_unread=self.metrics.count_unread,
            note_turn=self.metrics.count_turn,
            readings=self.readings,
            responses=self.responses,
            name_prompt=self.index.name_ahead,
            turns=TurnMemory(shared=self.turns),
        )
        app: ASGIApp = build_app(state, [*pages, *pass_routes(self.passing, self.tenancy.access, limits)])
        if self._settings.cors_origins:
            app = Cors(app, self._settings.cors_origins)
        return app if self._access_writer is None else AccessLog(app, self._access_writer)

    async def _start_access_log(self) -> None:
        writer = self._access_writer
        if writer is None:
            return
        try:
            await asyncio.to_thread(writer.start)
        except OSError as error:
            raise BadSettings(f"access_log: {error.strerror}") from None
        self._stack.push_async_callback(asyncio.to_thread, writer.close)

    def _count_processes(self) -> int:
        return self.ledger.peers + 1

    def _places(self, model: str) -> int:
        """Answers of a model that this process runs at once: its share of what the MD instances batch."""
        return -(-self.pools.places(model) // (self._settings.workers if self._siblings is not None else 1))

    def _follow_documents(self, redis: SharedRedis) -> LiveDocuments:
        refused = self.metrics.shared.documents_refused
        return LiveDocuments(redis, on_refusal=lambda refusal: refused.labels("/".join(refusal.kinds)).inc())

    def _discover(self, cluster: DiscoverySettings) -> PodWatch:
        return PodWatch(cluster, frozenset(self.served), partial(self.topology.note_found, cluster.region))

    def _on_known(self, instance: Instance, settings: EngineSettings) -> None:
        """An engine process has told what it is: follow its cache."""
        self.index.add_instance(build_cache_spec(instance, settings))
        self.canaries.notice(instance)
        self.readings.notice(instance)
        self.trust.note_restart(instance.spec.region, instance.spec.model)

    def find_crossing(self, model: str, prefill: Instance, decode: Instance) -> CanaryPath | None:
        """The way of KV between a P and a decode instance; None: they stand in one region. Raises NoWay."""
        if prefill.spec.region == decode.spec.region:
            return None
        link = self.links.get(prefill.spec.region, decode.spec.region, model)
        if link is None or not link.view().up:
            raise NoWay(f"no link from {prefill.spec.region} to {decode.spec.region} is up")
        facts, salts = self.service.models[model], self.tenancy.access.salts
        is_salted = salts.of_model(salts.of("any"), model) is not None
        return CanaryPath(
            link,
            model,
            facts.kv_name,
            self._canary_rules.kv_first_chunk_s,
            facts.kv_bytes_per_token,
            is_salted,
            facts.kv_shape,
            facts.kv_groups,
        )

    def _on_link(self, source: str, dest: str) -> None:
        """Another link joins two regions."""
        self.trust.forget((source, dest))
        self.canaries.recheck((source, dest))

    def canary_tokens(self, model: str) -> int:
        """What a model's canaries must be longer than for their KV to move and to be used."""
        return max(2 * self.links.chunk_tokens(model), self._canary_rules.kv_least_load_tokens)

    @property
    def _canary_rules(self) -> RelayRules:
        rules = self.rulebook.of("default") if self.rulebook.known else self._settings.rules
        return rules.relay
