"""Runs one answer: feeds the splice with what engines, link and clock do, and carries out what it says."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Literal

from backends.base import KvPath
from backends.errors import BackendError, EngineRejected, EngineTimeout
from backends.types import EngineFinish, LegRequest, LegUsage, TransferRequest
from gateway.control.fleet.pools import Instance, Pools
from gateway.failure import GenerationFailed
from gateway.relay.align import Aligner, AlignJob
from gateway.relay.cast import Cast
from gateway.relay.legs import ROLE_OF, build_leg
from gateway.relay.loan import Loan
from gateway.relay.mailbox import Mailbox
from gateway.relay.outbox import Outbox
from gateway.relay.pace import Pace
from gateway.relay.patience import Patience
from gateway.relay.record import Record
from gateway.relay.splice import Splice, SpliceTerms
from gateway.relay.steps import (
    Action,
    ClientGone,
    CloseLeg,
    Emit,
    End,
    Event,
    Fail,
    KvLate,
    KvReady,
    LegEnded,
    LegFailed,
    LegId,
    LegKind,
    LegTokens,
    NoInstance,
    Phase,
    RetryDue,
    RetryLater,
    StartLeg,
    StartTransfer,
    StopMatched,
    StopTransfer,
)
from gateway.relay.transfer import Transfer
from gateway.relay.types import AnswerEvent, Finish, GenerationRequest, KeepAlive, Tokens
from policies.rules import RelayRules
from policies.types import Plan, Role

log = logging.getLogger(__name__)

DRAIN_S = 1.0
"""How long a leg that said its last word may take to end its stream, so that its connection can be used again."""

FINISHES: dict[EngineFinish, Literal["stop", "length"]] = {"stop": "stop", "length": "length"}


@dataclass(frozen=True, slots=True)
class Course:
    """All that was decided for one answer before it began.

    ``path`` None: P and MD share a store, so the KV is there when P's stream ends. ``patience_s``: how long MD's KV may
    take, from the end of the P leg, before a relay (or a recomputation) is preferred to waiting. ``reserve_s``: see
    ``pacing``. ``rtt_s``: of the way to MD. ``lease_s``: how long P keeps KV that it lends to RLD; None: engines do not
    lend.
    ``keep_transfer``: asked when RLD ends the answer first; False stops the transfer under way. ``note_held`` is told
    which instance now caches which ids, ``note_moved`` that the receiving store has the prompt, ``note_length`` the
    answer's length.
    """

    request: GenerationRequest
    plan: Plan
    terms: SpliceTerms
    rules: RelayRules
    path: KvPath | None
    transfer: TransferRequest
    patience_s: float
    reserve_s: float
    rtt_s: float
    lease_s: float | None
    keep_transfer: Callable[[int], bool]
    note_held: Callable[[str, Sequence[int]], None]
    note_moved: Callable[[], None]
    note_length: Callable[[int], None]


@dataclass(slots=True)
class _Running:
    start: StartLeg
    instance: Instance
    task: asyncio.Task[None]
    said_last: bool = False


class RelayAnswer:
    """See ``gateway.relay.types.Answer``."""

    def __init__(self, course: Course, cast: Cast, pools: Pools, aligner: Aligner, record: Record) -> None:
        self._course = course
        self._cast = cast
        self._pools = pools
        self._aligner = aligner
        self._record = record
        self._splice = Splice(course.terms)
        self._mailbox = Mailbox()
        self._outbox = Outbox(course.reserve_s, pools.clock, lambda: self._mailbox.post(None))
        self._transfer = Transfer(
            course.path, course.transfer, record, self._mailbox.post, course.note_moved, self._aim
        )
        self._loan = Loan(course.lease_s, pools.clock)
        self._patience = Patience(course.transfer, course.rtt_s, course.rules)
        self._legs: dict[LegId, _Running] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._timers: list[asyncio.TimerHandle] = []
        self._draining: set[asyncio.Task[None]] = set()
        self._error: GenerationFailed | None = None
        self._last_failure: BackendError | None = None
        self._ended = False
        self._prefill_usage: LegUsage | None = None
        self._started_on: dict[LegId, Instance] = {}

    @property
    def plan_name(self) -> str:
        """Kind of the plan."""
        return self._course.plan.kind

    @property
    def plan_reason(self) -> str:
        """Why this plan."""
        return self._course.plan.reason

    def stop_at(self, completion_tokens: int) -> None:
        """Tell the splice of a stop string; what waits to be read lies behind it."""
        self._outbox.clear()
        self._record.cut(completion_tokens)
        if self._ended:
            self._outbox.put(self._finish("stop", None, completion_tokens))
        else:
            self._feed(StopMatched(completion_tokens))

    async def __aiter__(self) -> AsyncIterator[AnswerEvent]:
        """Run the answer; see ``Answer``."""
        loop = asyncio.get_running_loop()
        self._do(self._splice.start())
        quiet_s = self._course.rules.keepalive_s
        tick = loop.call_later(quiet_s, self._mailbox.post, None)
        heard_s = loop.time()
        try:
            while True:
                while (ready := self._outbox.take()) is not None:
                    if isinstance(ready, Tokens):
                        self._record.tokens(ready)
                    yield ready
                if self._outbox:
                    self._outbox.arm()
                elif self._error is not None:
                    raise self._error
                elif self._ended:
                    return
                event = await self._mailbox.get()
                if event is not None:
                    heard_s = loop.time()
                    self._feed(event)
                    continue
                if loop.time() >= heard_s + quiet_s:
                    heard_s = loop.time()
                    self._outbox.put(KeepAlive())
                tick.cancel()
                tick = loop.call_at(heard_s + quiet_s, self._mailbox.post, None)
        finally:
            tick.cancel()
            self._outbox.close()

    async def aclose(self) -> None:
        """End everything that still runs for this answer, except what was handed to the aligner."""
        self._feed(ClientGone())
        for timer in self._timers:
            timer.cancel()
        if self._draining:
            await asyncio.wait(self._draining, timeout=DRAIN_S)
        await self._transfer.aclose()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._record.close(self._splice)

    # Events in, actions out

    def _feed(self, event: Event) -> None:
        if isinstance(event, LegEnded | LegFailed) and self._ends_prefill(event):
            self._on_prefilled()
        self._do(self._splice.feed(event))

    def _ends_prefill(self, event: LegEnded | LegFailed) -> bool:
        """Whether no P will compute any more; one that failed without a token is replaced."""
        leg = self._legs.get(event.leg)
        is_last = isinstance(event, LegEnded) or bool(self._splice.log)
        return leg is not None and leg.start.kind is LegKind.PREFILL and is_last

    def _on_prefilled(self) -> None:
        self._transfer.prefilled()
        if self._course.path is None:
            self._mailbox.post(KvReady())
        else:
            self._later(self._course.patience_s, KvLate())

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Emit():
                    self._emit(action)
                case StartLeg():
                    self._start(action)
                case CloseLeg(leg):
                    self._close(leg)
                case StartTransfer():
                    self._transfer.start()
                case StopTransfer():
                    self._transfer.stop("stopped")
                case RetryLater(attempt):
                    rules = self._course.rules
                    wait_s = rules.transfer_retry_backoff_s * 2.0 ** min(attempt - 1, 30)
                    self._later(min(wait_s, rules.transfer_retry_backoff_max_s), RetryDue())
                case End():
                    self._end(action)
                case Fail(refused):
                    self._fail(refused)

    def _emit(self, action: Emit) -> None:
        instance = self._started_on[action.leg]
        tokens = Tokens(action.position, action.ids, action.logprobs, instance.spec.role.value, instance.spec.id)
        self._outbox.add(tokens, filling=self._splice.phase is Phase.CATCH_UP)

    def _end(self, action: End) -> None:
        self._ended = True
        made = len(self._splice.log)
        if action.align and self._course.keep_transfer(made):
            self._align()
        else:
            self._transfer.stop("finished_first")
        self._outbox.put(self._finish(action.reason, self._splice.log[-1] if action.terminator else None, made))
        self._record.finished(action.reason, made, self._prefill_usage)
        self._course.note_length(made)

    def _finish(self, reason: Literal["stop", "length"], terminator: int | None, made: int) -> Finish:
        shown = terminator if terminator in self._course.request.sampling.stop_token_ids else None
        usage = self._prefill_usage
        return Finish(reason, terminator is not None, shown, made, usage.cached_tokens if usage else None)

    def _fail(self, refused: LegId | None) -> None:
        error = self._last_failure
        if refused is not None and isinstance(error, EngineRejected):
            self._error = GenerationFailed(error.status, error.message, param=error.param)
        elif self._splice.log:
            self._error = GenerationFailed(502, "no decode instance could go on with the answer", code="decode_lost")
        else:
            self._error = GenerationFailed(
                503, "no engine instance can take the request", code="no_instance", retry_after_s=1.0
            )
        self._record.failed(self._error, error)

    # Legs

    def _start(self, start: StartLeg) -> None:
        instance = self._cast.pick(ROLE_OF[start.kind])
        if instance is None:
            self._record.note("no_instance", role=ROLE_OF[start.kind].value)
            self._mailbox.post(NoInstance(start.leg))
            return
        wait_s = self._patience.wait_s(start, instance, self._pools.clock())
        request = build_leg(self._course.request, start, self._splice.log, self._course.rules, wait_s)
        request = instance.fit(self._loan.apply(request, start))
        self._started_on[start.leg] = instance
        self._record.leg_started(start, instance.spec.id, instance.spec.cost_per_s)
        task = self._spawn(self._pump(start, instance, request))
        task.add_done_callback(lambda done: self._on_pumped(start.leg, done))
        self._legs[start.leg] = _Running(start, instance, task)

    def _close(self, leg: LegId) -> None:
        running = self._legs.pop(leg, None)
        if running is None:
            return
        if running.said_last:
            self._draining.add(running.task)
            running.task.add_done_callback(self._draining.discard)
        else:
            running.task.cancel()
            self._record.leg_ended(running.start, running.instance.spec.id, "closed")

    async def _pump(self, start: StartLeg, instance: Instance, request: LegRequest) -> None:
        try:
            with instance.occupied():
                await self._read(start, instance, request)
        except BackendError as error:
            self._last_failure = error
            if isinstance(error, EngineTimeout):
                self._patience.note_silence(instance)
            self._pools.report_failure(instance, error)
            self._cast.lose(instance)
            self._record.leg_ended(start, instance.spec.id, type(error).__name__)
            self._mailbox.post(LegFailed(start.leg, refused=isinstance(error, EngineRejected)))
        else:
            self._record.leg_ended(start, instance.spec.id, "ended")
            self._mailbox.post(LegEnded(start.leg))

    def _on_pumped(self, leg: LegId, done: asyncio.Task[None]) -> None:
        """An adapter that raised what it may not raise has failed, too: nobody must wait for its leg."""
        if not done.cancelled() and (error := done.exception()) is not None:
            log.error("leg %s of %s ended by %s", leg, self._course.request.request_id, type(error).__name__)
            self._mailbox.post(LegFailed(leg))

    async def _read(self, start: StartLeg, instance: Instance, request: LegRequest) -> None:
        pace = self._make_pace(start, instance)
        try:
            async with aclosing(instance.engine.generate(request)) as stream:
                async for chunk in stream:
                    if chunk.kv_ticket is not None:
                        self._loan.note(chunk.kv_ticket)
                    if chunk.usage is not None:
                        self._note_usage(start, chunk.usage)
                    if chunk.token_ids and pace.note(len(chunk.token_ids), self._pools.clock()):
                        self._pools.report_success(instance)
                        self._patience.note_answer(start, instance)
                        self._course.note_held(instance.spec.id, request.prompt)
                    finish = chunk.finish_reason and FINISHES.get(chunk.finish_reason)
                    if finish and start.leg in self._legs and start.kind is not LegKind.PREFILL:
                        self._legs[start.leg].said_last = True
                    if chunk.token_ids or finish:
                        await self._mailbox.put(LegTokens(start.leg, chunk.token_ids, chunk.logprobs, finish))
        finally:
            pace.end()

    def _make_pace(self, start: StartLeg, instance: Instance) -> Pace:
        if ROLE_OF[start.kind] is not Role.MD:
            return Pace(instance, start, self._pools.clock())
        lacking_tokens = self._patience.lacking_tokens(start, instance)
        is_first = not self._patience.knows(instance)
        return Pace(instance, start, self._pools.clock(), lacking_tokens, is_first)

    def _note_usage(self, start: StartLeg, usage: LegUsage) -> None:
        self._record.leg_usage(start, usage)
        if start.kind is LegKind.PREFILL:
            self._prefill_usage = usage

    # The KV

    def _aim(self) -> tuple[str | None, str | None]:
        prefill, main = (self._cast.pick(ROLE_OF[kind]) for kind in (LegKind.PREFILL, LegKind.FINAL))
        return prefill.spec.id if prefill else None, main.spec.id if main else None

    def _align(self) -> None:
        main = self._cast.pick(ROLE_OF[LegKind.FINAL])
        if main is not None:
            job = AlignJob(
                self._course.request, tuple(self._splice.log), main, self._course.rules, self._transfer.give_away()
            )
            self._aligner.adopt(job)
            self._record.note("aligning", instance=main.spec.id)
        else:
            self._transfer.stop("no_main_instance")

    # Tasks and timers

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _later(self, wait_s: float, event: Event) -> None:
        self._timers.append(asyncio.get_running_loop().call_later(wait_s, self._deliver, event))

    def _deliver(self, event: Event) -> None:
        if isinstance(event, RetryDue):
            self._cast.forgive()
        self._mailbox.post(event)
