"""The legs of one answer: what each kind asks of an engine, and how they run on instances."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from backends.base import Room
from backends.errors import BackendError, EngineRejected, EngineTimeout, EngineUnavailable
from backends.types import EngineFinish, LegChunk, LegRequest, LegUsage, Sampling
from gateway.fleet.pools import Instance, Pools
from gateway.relay.answer_plan import AnswerPlan
from gateway.relay.failover import Failover
from gateway.relay.nixl_lease import NixlLease
from gateway.relay.record import Record
from gateway.relay.splice_events import (
    Event,
    LegEnded,
    LegFailed,
    LegId,
    LegKind,
    LegTokens,
    LegUnplaced,
    StartLeg,
)
from gateway.relay.timeouts import FirstTokenTimeouts
from gateway.relay.types import GenerationRequest, Tokens
from policies.rules import RelayRules
from policies.types import Role

log = logging.getLogger(__name__)

DRAIN_S = 1.0
"""How long a leg that said its last word may take to end its stream, so that its connection can be used again."""
LEAST_MEASURED_TOKENS = 16
"""A final with fewer tokens says little of the speed of extends."""
FINISHES: dict[EngineFinish, Literal["stop", "length"]] = {"stop": "stop", "length": "length"}
ROLE_OF: dict[LegKind, Role] = {
    LegKind.PREFILL: Role.P,
    LegKind.RELAY: Role.RLD,
    LegKind.EXTEND: Role.MD,
    LegKind.FINAL: Role.MD,
}
GREEDY = Sampling(temperature=0.0, repetition_penalty=1.0)
"""For legs whose token is thrown away: the cheapest there is, and nothing is left to an engine's defaults."""


def build_leg(
    request: GenerationRequest,
    start: StartLeg,
    emitted: Sequence[int],
    rules: RelayRules,
    wait_s: float,
    rank: int | None = None,
) -> LegRequest:
    """Spell out one leg. Its id is new for each attempt; the client's id never reaches an engine.

    ``wait_s``: how long its first token may take. ``rank``: see ``LegRequest.data_parallel_rank``.
    """
    return LegRequest(
        request_id=f"{request.request_id}-{start.kind.name.lower()}-{start.leg}",
        model=request.model,
        prompt=[*request.prompt, *emitted[: start.base]] if start.base else request.prompt,
        max_tokens=start.max_tokens,
        min_tokens=start.min_tokens,
        sampling=GREEDY if start.kind is LegKind.EXTEND else request.sampling,
        cache_salt=request.cache_salt,
        priority=request.priority,
        data_parallel_rank=rank,
        first_token_timeout_s=wait_s,
        idle_timeout_s=rules.idle_timeout_s,
        trace_headers=request.trace.of_leg(start.leg).headers() if request.trace is not None else {},
    )


def build_align_leg(
    request: GenerationRequest, emitted: Sequence[int], rules: RelayRules, rank: int | None = None
) -> LegRequest:
    """The leg that brings MD's cache into line with an answer that ended at RLD."""
    return LegRequest(
        request_id=f"{request.request_id}-align",
        model=request.model,
        prompt=[*request.prompt, *emitted],
        max_tokens=1,
        sampling=GREEDY,
        cache_salt=request.cache_salt,
        priority=request.priority,
        data_parallel_rank=rank,
        first_token_timeout_s=rules.extend_timeout_s,
        idle_timeout_s=rules.idle_timeout_s,
        trace_headers=request.trace.headers() if request.trace is not None else {},
    )


@dataclass(slots=True)
class LegPace:
    """How fast one leg's tokens came, in monotonic seconds. ``lacking_tokens``: to compute before the first.

    ``is_first_extend``: the instance has none of this answer's KV but what crossed.
    """

    instance: Instance
    start: StartLeg
    lacking_tokens: int = 0
    is_first_extend: bool = False
    started_s: float = 0.0
    first_s: float | None = None
    last_s: float = 0.0
    tokens: int = 0

    def wait(self, now_s: float) -> None:
        """The engine is asked."""
        self.started_s = now_s
        self.instance.extending_tokens += self.lacking_tokens

    def begin(self, now_s: float) -> None:
        """The first tokens are there. Those after them only move ``last_s`` and ``tokens`` on."""
        self.first_s = now_s
        self.instance.extending_tokens -= self.lacking_tokens

    def end(self) -> None:
        """Let the instance's figures learn from the leg; one that brought nothing teaches nothing."""
        if self.first_s is None:
            self.instance.extending_tokens -= self.lacking_tokens
            return
        if self._measures_extend():
            self.instance.note_extend(self.lacking_tokens, self.first_s - self.started_s)
        if self.start.kind is not LegKind.EXTEND:
            self.instance.note_decode(self.tokens, self.last_s - self.first_s)

    def _measures_extend(self) -> bool:
        """Whether it tells how fast the instance extends.

        A first extend loads the prompt's KV, too: better than nothing where nothing is known.
        """
        if self.is_first_extend and self.instance.extend_tokens_per_s is not None:
            return False
        if self.start.kind is LegKind.FINAL:
            return self.start.kv_expected and min(self.start.base, self.lacking_tokens) >= LEAST_MEASURED_TOKENS
        return self.start.kind is LegKind.EXTEND


@dataclass(slots=True)
class _Running:
    start: StartLeg
    instance: Instance
    request: LegRequest
    pace: LegPace
    role: str
    position: int
    """Of the next id."""
    watch: Callable[[int | None], None] | None
    """Is told what of the KV that crossed the engine took."""
    task: asyncio.Task[None] = field(init=False)
    has_answered: bool = False
    said_last: bool = False
    is_closed: bool = False
    cached_tokens: int | None = None


class _Closed:
    """The room of a leg that was closed: its engine is not read on until it is cancelled. A ``Room``."""

    def is_set(self) -> bool:
        return False

    async def wait(self) -> object:
        return await asyncio.get_running_loop().create_future()


CLOSED = _Closed()


class Legs:
    """The engine calls of one answer; ``feed`` is told what they bring.

    ``room``: what engines are read for has room for it. ``last_failure``: of the leg that failed last. ``stored``:
    waits until P's KV is in its store, after P's stream has ended.
    """

    def __init__(
        self,
        plan: AnswerPlan,
        failover: Failover,
        pools: Pools,
        record: Record,
        feed: Callable[[Event], None],
        stored: Callable[[], Awaitable[None]],
    ) -> None:
        self._plan = plan
        self._failover = failover
        self._pools = pools
        self._clock = pools.clock
        self._record = record
        self._feed = feed
        self._stored = stored
        self._lease = NixlLease(plan.lease_s, pools.clock) if plan.lease_s is not None else None
        self._timeouts = FirstTokenTimeouts(plan.transfer, plan.rtt_s, plan.rules)
        self._running: dict[LegId, _Running] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._draining: set[asyncio.Task[None]] = set()
        self.room: Room = asyncio.Event()
        self._prefill: asyncio.Task[None] | None = None
        self._on_prefill_told: Callable[[], None] | None = None
        self.last_failure: BackendError | None = None
        self.retry_after_s: float | None = None
        """The soonest that an engine which refused a leg wants to be asked again."""
        self.prefill_usage: LegUsage | None = None

    def start(self, start: StartLeg, emitted: Sequence[int]) -> None:
        """Start a leg; ``emitted``: the answer's ids so far. Without an instance for it LegUnplaced is fed."""
        instance = self._failover.pick(ROLE_OF[start.kind])
        if instance is None:
            self._record.note("no_instance", role=ROLE_OF[start.kind].value)
            self._feed(LegUnplaced(start.leg))
            return
        wait_s = self._timeouts.wait_s(start, instance, self._pools.clock())
        rank = self._failover.rank_of(instance)
        request = build_leg(self._plan.request, start, emitted, self._plan.rules, wait_s, rank)
        if self._lease is not None:
            request = self._lease.apply(request, start)
        self._record.leg_started(start, instance.spec.id, instance.spec.cost_per_s, rank)
        leg = self._running[start.leg] = self._make_leg(start, instance, instance.fit(request))
        leg.task = asyncio.create_task(self._run(leg))
        self._tasks.add(leg.task)
        if start.kind is LegKind.PREFILL:
            self._prefill = leg.task
        leg.task.add_done_callback(partial(self._on_done, start.leg))

    def close(self, leg: LegId) -> None:
        """Abort a leg; one that said its last word may end by itself."""
        running = self._running.pop(leg, None)
        if running is None:
            return
        running.is_closed = True
        if running.said_last:
            self._draining.add(running.task)
            running.task.add_done_callback(self._draining.discard)
        else:
            running.task.cancel()
            if running.has_answered:
                self._pools.report_worked(running.instance, self._plan.request.culprit)
            self._record.leg_ended(running.start, running.instance.spec.id, "closed")

    def when_prefill_told(self, tell: Callable[[], None]) -> None:
        """Call ``tell`` once P has said what its leg took, or will not: now, or within ``DRAIN_S``."""
        if self.prefill_usage is not None or self._prefill is None or self._prefill.done():
            tell()
        else:
            self._on_prefill_told = tell
            asyncio.get_running_loop().call_later(DRAIN_S, self._tell_of_prefill)

    @property
    def cached_tokens(self) -> int | None:
        """What P took from a cache; None: it does not say.

        A P that was stopped while it wrote could not say it: then what was known of it before.
        """
        if self.prefill_usage is not None:
            return self.prefill_usage.cached_tokens
        return self._plan.outcome.known_cached_tokens() if self._plan.plan.fused else None

    def is_prefill(self, leg: LegId) -> bool:
        """Whether this is a P leg that was not closed."""
        running = self._running.get(leg)
        return running is not None and running.start.kind is LegKind.PREFILL

    def watch_kv(self, instance: Instance) -> Callable[[int | None], None]:
        """Return what is to be told how much of the KV an instance took that crossed for this answer.

        It counts where the instance has not computed the prompt for this answer before.
        """
        is_first = not self._timeouts.knows(instance)

        def note_taken(cached_tokens: int | None) -> None:
            if is_first and not self._plan.outcome.took(instance.spec.id, cached_tokens):
                self._record.note("kv_unread", instance=instance.spec.id, cached_tokens=cached_tokens)

        return note_taken

    async def aclose(self) -> None:
        """End what still runs, once the legs that said their last word had the time to end by themselves."""
        self._on_prefill_told = None
        if self._draining:
            await asyncio.wait(self._draining, timeout=DRAIN_S)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, leg: _Running) -> None:
        start, instance = leg.start, leg.instance
        try:
            with instance.occupied(leg.request.data_parallel_rank):
                await self._read(leg)
        except BackendError as error:
            self.last_failure = error
            if isinstance(error, EngineUnavailable) and error.retry_after_s is not None:
                self.retry_after_s = min(error.retry_after_s, self.retry_after_s or error.retry_after_s)
            if isinstance(error, EngineTimeout):
                self._timeouts.note_silence(instance)
            self._pools.report_failure(instance, error, self._plan.request.culprit)
            self._failover.lose(instance)
            self._record.leg_ended(start, instance.spec.id, type(error).__name__)
            self._feed(LegFailed(start.leg, refused=isinstance(error, EngineRejected)))
        else:
            self._pools.report_worked(instance, self._plan.request.culprit)
            self._record.leg_ended(start, instance.spec.id, "ended")
            if self.is_prefill(start.leg):
                await self._stored()
            self._feed(LegEnded(start.leg))

    def _on_done(self, leg: LegId, done: asyncio.Task[None]) -> None:
        """An adapter that raised what it may not raise has failed, too: nobody must wait for its leg."""
        self._tasks.discard(done)
        if done is self._prefill:
            self._tell_of_prefill()
        if not done.cancelled() and (error := done.exception()) is not None:
            log.error("leg %s of %s ended by %s", leg, self._plan.request.request_id, type(error).__name__)
            self._feed(LegFailed(leg))

    async def _read(self, leg: _Running) -> None:
        leg.pace.wait(self._pools.clock())
        try:
            await leg.instance.engine.generate(leg.request, partial(self._take, leg))
        finally:
            leg.pace.end()
            if leg.watch is not None and leg.pace.first_s is not None:
                leg.watch(leg.cached_tokens)

    def _take(self, leg: _Running, chunk: LegChunk) -> Room | None:
        """Feed what an engine says, in the turn in which it comes."""
        if leg.is_closed and not leg.said_last:
            return CLOSED
        if chunk.kv_ticket is not None and self._lease is not None:
            self._lease.note(chunk.kv_ticket)
        if chunk.usage is not None:
            self._note_usage(leg, chunk.usage)
        ids, finish = chunk.token_ids, None
        if ids:
            pace = leg.pace
            pace.last_s = self._clock()
            pace.tokens += len(ids)
            if pace.first_s is None:
                pace.begin(pace.last_s)
                self._on_first(leg)
        if chunk.finish_reason is not None and (finish := FINISHES.get(chunk.finish_reason)):
            leg.said_last |= not leg.is_closed
        if ids or finish:
            tokens = Tokens(leg.position, ids, chunk.logprobs, leg.role, leg.instance.spec.id)
            leg.position += len(ids)
            self._feed(LegTokens(leg.start.leg, tokens, finish))
            if leg.is_closed and not leg.said_last:
                return CLOSED
        return None if self.room.is_set() or leg.said_last else self.room

    def _on_first(self, leg: _Running) -> None:
        self._pools.report_success(leg.instance)
        leg.has_answered = True
        self._timeouts.note_answer(leg.start, leg.instance)
        self._plan.outcome.held(leg.instance.spec.id, leg.request.prompt, leg.request.data_parallel_rank)

    def _make_leg(self, start: StartLeg, instance: Instance, request: LegRequest) -> _Running:
        is_main = ROLE_OF[start.kind] is Role.MD
        pace = LegPace(instance, start)
        if is_main:
            pace.lacking_tokens = self._timeouts.lacking_tokens(start, instance)
            pace.is_first_extend = not self._timeouts.knows(instance)
        watch = self.watch_kv(instance) if start.kv_expected and is_main else None
        return _Running(start, instance, request, pace, instance.spec.role.value, start.base, watch)

    def _note_usage(self, leg: _Running, usage: LegUsage) -> None:
        self._record.leg_usage(leg.start, usage)
        if usage.cached_tokens is not None:
            leg.cached_tokens = usage.cached_tokens
        if leg.start.kind is LegKind.PREFILL:
            self.prefill_usage = usage
            self._tell_of_prefill()

    def _tell_of_prefill(self) -> None:
        if self._on_prefill_told is not None:
            tell, self._on_prefill_told = self._on_prefill_told, None
            tell()
