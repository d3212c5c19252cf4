"""Runs one answer: feeds the splice with what engines, link and clock do, and carries out what it says."""

import asyncio
from collections.abc import AsyncIterator
from typing import Literal

from backends.errors import EngineRejected
from gateway.errors import GatewayError
from gateway.fleet.pools import Pools
from gateway.relay.align import Aligner, AlignJob
from gateway.relay.answer_plan import AnswerPlan
from gateway.relay.failover import Failover
from gateway.relay.legs import ROLE_OF
from gateway.relay.mailbox import Mailbox
from gateway.relay.outbox import Outbox
from gateway.relay.record import Record
from gateway.relay.runner import LegRunner
from gateway.relay.splice import Splice
from gateway.relay.splice_events import (
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
    Phase,
    RetryDue,
    RetryLater,
    StartLeg,
    StartTransfer,
    StopMatched,
    StopTransfer,
)
from gateway.relay.transfer import KvTransfer
from gateway.relay.types import AnswerEvent, Finish, KeepAlive, Tokens


class RelayAnswer:
    """See ``gateway.relay.types.Answer``."""

    def __init__(self, course: AnswerPlan, cast: Failover, pools: Pools, aligner: Aligner, record: Record) -> None:
        self._course = course
        self._cast = cast
        self._aligner = aligner
        self._record = record
        self._splice = Splice(course.terms)
        self._mailbox = Mailbox()
        self._outbox = Outbox(course.reserve_s, pools.clock, lambda: self._mailbox.post(None))
        self._transfer = KvTransfer(
            course.path, course.transfer, record, self._mailbox.post, course.note_moved, self._aim
        )
        self._legs = LegRunner(course, cast, pools, record, self._mailbox)
        self._timers: list[asyncio.TimerHandle] = []
        self._error: GatewayError | None = None
        self._ended = False

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
        await self._legs.aclose()
        await self._transfer.aclose()
        self._record.close(self._splice)

    # Events in, actions out

    def _feed(self, event: Event) -> None:
        if isinstance(event, LegEnded | LegFailed) and self._ends_prefill(event):
            self._on_prefilled()
        self._do(self._splice.feed(event))

    def _ends_prefill(self, event: LegEnded | LegFailed) -> bool:
        """Whether no P will compute any more; one that failed without a token is replaced."""
        is_last = isinstance(event, LegEnded) or bool(self._splice.log)
        return is_last and self._legs.is_prefill(event.leg)

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
                    self._legs.start(action, self._splice.log)
                case CloseLeg(leg):
                    self._legs.close(leg)
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
        instance = self._legs.makers[action.leg]
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
        self._record.finished(action.reason, made, self._legs.prefill_usage)
        self._course.note_length(made)

    def _finish(self, reason: Literal["stop", "length"], terminator: int | None, made: int) -> Finish:
        shown = terminator if terminator in self._course.request.sampling.stop_token_ids else None
        usage = self._legs.prefill_usage
        return Finish(reason, terminator is not None, shown, made, usage.cached_tokens if usage else None)

    def _fail(self, refused: LegId | None) -> None:
        error = self._legs.last_failure
        if refused is not None and isinstance(error, EngineRejected):
            self._error = GatewayError(error.status, error.message, param=error.param)
        elif self._splice.log:
            self._error = GatewayError(502, "no decode instance could go on with the answer", code="decode_lost")
        else:
            self._error = GatewayError(
                503, "no engine instance can take the request", code="no_instance", retry_after_s=1.0
            )
        self._record.failed(self._error, error)

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

    # Timers

    def _later(self, wait_s: float, event: Event) -> None:
        self._timers.append(asyncio.get_running_loop().call_later(wait_s, self._deliver, event))

    def _deliver(self, event: Event) -> None:
        if isinstance(event, RetryDue):
            self._cast.forgive()
        self._mailbox.post(event)
