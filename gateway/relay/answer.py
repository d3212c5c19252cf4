"""One answer: the splice is told what engines, link and clock do, and what it says is carried out.

Everything happens in the turn of the event loop in which it came: an engine's bytes become the client's without waiting
for another task. What comes while the splice is being obeyed is fed to it right after that.
"""

import asyncio
from collections import deque
from functools import partial
from typing import Literal

from backends.errors import EngineRejected
from gateway.errors import GatewayError
from gateway.fleet.pools import Pools
from gateway.relay.align import Aligner, AlignJob
from gateway.relay.answer_plan import AnswerPlan
from gateway.relay.failover import Failover
from gateway.relay.legs import ROLE_OF, Legs
from gateway.relay.pacing import Given, Outbox
from gateway.relay.record import Record
from gateway.relay.splice import Splice
from gateway.relay.splice_events import (
    Action,
    ClientGone,
    CloseLeg,
    End,
    Event,
    Fail,
    IllegalEvent,
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
from gateway.relay.types import AnswerSink, Finish, Tokens


class RelayAnswer:
    """See ``gateway.relay.types.Answer``."""

    def __init__(self, plan: AnswerPlan, failover: Failover, pools: Pools, aligner: Aligner, record: Record) -> None:
        self._plan = plan
        self._failover = failover
        self._aligner = aligner
        self._record = record
        self._splice = Splice(plan.terms)
        self._outbox = Outbox(plan.reserve_s, pools.clock, self._give)
        self._transfer = KvTransfer(plan, record, self._feed, self._aim)
        self._legs = Legs(plan, failover, pools, record, self._feed)
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._timers: list[asyncio.TimerHandle] = []
        self._heard_s = 0.0
        self._arrived: deque[Event] = deque()
        self._is_obeying = False
        self._is_ended = False
        """The splice is done; what is left is in the outbox."""
        self._is_finished = False
        """The outbox has the Finish, too."""
        self._stopped_at: int | None = None

    @property
    def plan_name(self) -> str:
        """Kind of the plan."""
        return self._plan.plan.kind

    @property
    def plan_reason(self) -> str:
        """Why this plan."""
        return self._plan.plan.reason

    async def run(self, sink: AnswerSink) -> None:
        """See ``Answer``."""
        self._sink, self._legs.room = sink, sink.room
        self._tick = self._loop.call_later(self._plan.rules.keepalive_s, self._on_quiet)
        try:
            self._is_obeying = True
            for action in self._splice.start():
                self._obey(action)
            self._is_obeying = False
            if self._arrived:
                self._feed(self._arrived.popleft())
            await self._over
        finally:
            self._tick.cancel()
            self._outbox.close()

    def stop_at(self, completion_tokens: int) -> None:
        """Tell the splice of a stop string; what waits to be given lies behind it."""
        self._stopped_at = completion_tokens
        self._outbox.clear()
        self._record.cut(completion_tokens)
        if self._is_finished:
            self._outbox.end(self._finish("stop", None, completion_tokens))
        elif not self._is_ended:
            self._feed(StopMatched(completion_tokens))

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
        self._arrived.append(event)
        if self._is_obeying:
            return
        self._heard_s = self._loop.time()
        self._is_obeying = True
        try:
            while self._arrived:
                event = self._arrived.popleft()
                if isinstance(event, LegEnded | LegFailed) and self._ends_prefill(event):
                    self._on_prefilled()
                for action in self._splice.feed(event):
                    self._obey(action)
        except IllegalEvent as error:
            self._end_with(error)
        finally:
            self._is_obeying = False

    def _obey(self, action: Action) -> None:
        match action:
            case Tokens():
                if not self._outbox.holds(action, filling=self._splice.phase is Phase.CATCH_UP):
                    self._give(action)
            case StartLeg():
                self._legs.start(action, self._splice.log)
            case CloseLeg(leg):
                self._legs.close(leg)
            case StartTransfer():
                self._transfer.start()
            case StopTransfer():
                self._transfer.stop("stopped")
            case RetryLater(attempt):
                rules = self._plan.rules
                wait_s = rules.transfer_retry_backoff_s * 2.0 ** min(attempt - 1, 30)
                self._later(min(wait_s, rules.transfer_retry_backoff_max_s), RetryDue())
            case End():
                self._end(action)
            case Fail(refused):
                self._fail(refused)

    def _ends_prefill(self, event: LegEnded | LegFailed) -> bool:
        """Whether no P will compute any more; one that failed without a token is replaced."""
        is_last = isinstance(event, LegEnded) or bool(self._splice.log)
        return is_last and self._legs.is_prefill(event.leg)

    def _on_prefilled(self) -> None:
        self._transfer.prefilled()
        if self._plan.path is None:
            self._feed(KvReady())
        else:
            self._later(self._plan.kv_patience_s, KvLate())

    # What the client gets

    def _give(self, given: Given) -> None:
        if isinstance(given, Tokens):
            self._record.tokens(given)
            try:
                self._sink.take(given)
            except Exception as error:  # whose turn this is, a leg's or a timer's, could not tell the client
                self._end_with(error)
        elif isinstance(given, Finish):
            self._sink.finish(given)
            if not self._over.done():
                self._over.set_result(None)
        else:
            self._end_with(given)

    def _end_with(self, error: Exception) -> None:
        if not self._over.done():
            self._over.set_exception(error)

    def _end(self, action: End) -> None:
        self._is_ended = True
        made = len(self._splice.log)
        if action.align and self._plan.outcome.keeps_transfer(made):
            self._align()
        else:
            self._transfer.stop("finished_first")
        self._plan.outcome.ended(made)
        self._legs.when_prefill_told(partial(self._give_finish, action, made))

    def _give_finish(self, action: End, made: int) -> None:
        self._is_finished = True
        self._record.finished(action.reason, made, self._legs.prefill_usage)
        if self._stopped_at is not None:
            self._outbox.end(self._finish("stop", None, self._stopped_at))
        else:
            self._outbox.end(self._finish(action.reason, self._splice.log[-1] if action.terminator else None, made))

    def _finish(self, reason: Literal["stop", "length"], terminator: int | None, made: int) -> Finish:
        shown = terminator if terminator in self._plan.request.sampling.stop_token_ids else None
        usage = self._legs.prefill_usage
        return Finish(reason, terminator is not None, shown, made, usage.cached_tokens if usage else None)

    def _fail(self, refused: LegId | None) -> None:
        cause = self._legs.last_failure
        if refused is not None and isinstance(cause, EngineRejected):
            error = GatewayError(cause.status, cause.message, param=cause.param)
        elif self._splice.log:
            error = GatewayError(502, "no decode instance could go on with the answer", code="decode_lost")
        else:
            error = GatewayError(503, "no engine instance can take the request", code="no_instance", retry_after_s=1.0)
        self._record.failed(error, cause)
        self._outbox.end(error)

    # The KV

    def _aim(self) -> tuple[str | None, str | None]:
        prefill, main = (self._failover.pick(ROLE_OF[kind]) for kind in (LegKind.PREFILL, LegKind.FINAL))
        return prefill.spec.id if prefill else None, main.spec.id if main else None

    def _align(self) -> None:
        main = self._failover.pick(ROLE_OF[LegKind.FINAL])
        if main is not None:
            note_taken = self._legs.watch_kv(main)
            transfer = self._transfer.give_away()
            log = tuple(self._splice.log)
            job = AlignJob(self._plan.request, log, main, self._plan.rules, transfer, note_taken)
            self._aligner.adopt(job)
            self._record.note("aligning", instance=main.spec.id)
        else:
            self._transfer.stop("no_main_instance")

    # Timers

    def _later(self, wait_s: float, event: Event) -> None:
        self._timers.append(self._loop.call_later(wait_s, self._deliver, event))

    def _deliver(self, event: Event) -> None:
        if isinstance(event, RetryDue):
            self._failover.forgive()
        self._feed(event)

    def _on_quiet(self) -> None:
        quiet_s = self._plan.rules.keepalive_s
        if self._loop.time() >= self._heard_s + quiet_s:
            self._heard_s = self._loop.time()
            self._sink.keep_alive()
        self._tick = self._loop.call_at(self._heard_s + quiet_s, self._on_quiet)
