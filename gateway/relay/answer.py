"""One answer: the splice is told what engines, link and clock do, and what it says is carried out.

From an engine's adapter to the sink everything happens in one turn of the event loop, unless the pacing holds tokens
back. What comes while the splice is being obeyed is fed to it right after that.

An answer ends in three steps: the splice is done, P has said what its leg took, so that the outbox gets the end
(``_has_end``), and the sink has it (``_over``). A stop string may be found at any of them (``_stopped_at``).
"""

import asyncio
from collections import deque
from dataclasses import replace
from functools import partial
from typing import Literal

from backends.errors import EngineRejected
from backends.types import TransferRequest
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
    KvLate,
    KvReady,
    KvState,
    LegEnded,
    LegFailed,
    LegId,
    LegKind,
    LegTokens,
    RetryDue,
    RetryLater,
    StartLeg,
    StartTransfer,
    StopMatched,
    StopTransfer,
)
from gateway.relay.transfer import KvTransfer
from gateway.relay.types import AnswerSink, Finish, Tokens

UNKNOWN_WAIT_S = 1.0
"""When to come back where no engine said."""


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
        self._transfer.is_prefilled = not plan.plan.has_prefill
        self._legs = Legs(plan, failover, pools, record, self._feed, self._stored)
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[Exception | None] = self._loop.create_future()
        self._timers: list[asyncio.TimerHandle] = []
        self._heard_s = 0.0
        self._arrived: deque[Event] = deque()
        self._is_obeying = False
        self._has_end = False
        """The outbox was told how the answer ends."""
        self._stopped_at: int | None = None
        self._expects_kv = False

    @property
    def plan_name(self) -> str:
        return self._plan.plan.kind

    @property
    def plan_reason(self) -> str:
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
            self._transfer.prioritise(self._splice.kv_priority)
            if self._arrived:
                self._feed(self._arrived.pop())
            error = await self._over
        finally:
            self._tick.cancel()
            self._feed(ClientGone())
            self._outbox.close()
        if error is not None:
            raise error

    def stop_at(self, completion_tokens: int) -> None:
        """See ``Answer``."""
        self._stopped_at = completion_tokens

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
                if not self._transfer.is_prefilled and self._ends_prefill(event):
                    self._on_prefilled()
                for action in self._splice.feed(event):
                    self._obey(action)
                if self._splice.kv is KvState.MOVING and not isinstance(event, LegTokens):
                    self._transfer.prioritise(self._splice.kv_priority)
        except Exception as error:  # whose turn this is, a leg's or a timer's, could not tell the client
            self._end_with(error)
        finally:
            self._is_obeying = False

    def _obey(self, action: Action) -> None:
        match action:
            case Tokens():
                if not self._outbox.hold_back(action, self._splice.phase):
                    self._give(action)
            case StartLeg():
                self._legs.start(action, self._splice.log)
            case CloseLeg(leg):
                self._legs.close(leg)
            case StartTransfer():
                self._transfer.start()
                self._expect_kv()
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

    def _ends_prefill(self, event: Event) -> bool:
        """Whether no P will compute any more; one that failed without a token is replaced.

        One that goes on has computed the prompt when its first token is there.
        """
        match event:
            case LegTokens(leg, tokens):
                is_last = self._plan.plan.fused and bool(tokens.ids)
            case LegEnded(leg):
                is_last = True
            case LegFailed(leg):
                is_last = bool(self._splice.log)
            case _:
                return False
        return is_last and self._legs.is_prefill(leg)

    async def _stored(self) -> None:
        """P has ended, but engines may store a little behind it: what is not there yet RLD would compute again."""
        plan, rules = self._plan.plan, self._plan.rules
        if plan.relays_first and not (plan.fused or plan.lends):
            await self._transfer.stored(rules.store_wait_tokens, rules.store_wait_s)

    def _on_prefilled(self) -> None:
        self._transfer.prefilled()
        self._expect_kv()

    def _expect_kv(self) -> None:
        """Wait for the KV, from when P has ended and somebody wants it moved; a singular answer may never."""
        if self._expects_kv or not self._transfer.is_prefilled or self._splice.kv is KvState.ABSENT:
            return
        self._expects_kv = True
        if self._plan.path is None:
            self._feed(KvReady())
        else:
            self._later(self._plan.kv_patience_s, KvLate())

    # What the client gets

    def _give(self, given: Given) -> None:
        if self._over.done():
            return
        try:
            if isinstance(given, Tokens):
                self._record.tokens(given)
                self._sink.take(given)
                if self._stopped_at is not None:
                    self._stop(self._stopped_at)
            elif isinstance(given, Finish):
                self._sink.finish(given)
                self._end_with(None)
            else:
                self._end_with(given)
        except Exception as error:  # the same for what waited for its time
            self._end_with(error)

    def _end_with(self, error: Exception | None) -> None:
        if not self._over.done():
            self._over.set_result(error)

    def _stop(self, completion_tokens: int) -> None:
        """The sink has taken the tokens in which the text ends; what waits to be given lies behind it."""
        self._outbox.clear()
        self._record.cut(completion_tokens)
        if self._has_end:
            self._give_end(self._finish("stop", None, completion_tokens))
        else:
            self._feed(StopMatched(completion_tokens))

    def _end(self, action: End) -> None:
        made = len(self._splice.log)
        if action.align and self._plan.outcome.settle_transfer(made):
            self._align()
        else:
            self._transfer.stop("finished_first")
        self._plan.outcome.ended(made)
        self._legs.when_prefill_told(partial(self._give_finish, action, made))

    def _give_finish(self, action: End, made: int) -> None:
        if self._stopped_at is not None:
            self._give_end(self._finish("stop", None, self._stopped_at))
        else:
            self._give_end(self._finish(action.reason, self._splice.log[-1] if action.terminator else None, made))

    def _give_end(self, finish: Finish) -> None:
        self._has_end = True
        self._record.finished(finish.reason, finish.completion_tokens, self._legs.cached_tokens)
        self._outbox.end(finish)

    def _finish(self, reason: Literal["stop", "length"], terminator: int | None, made: int) -> Finish:
        shown = terminator if terminator in self._plan.request.sampling.stop_token_ids else None
        return Finish(reason, terminator is not None, shown, made, self._legs.cached_tokens)

    def _fail(self, refused: LegId | None) -> None:
        cause = self._legs.last_failure
        if refused is not None and isinstance(cause, EngineRejected):
            error = GatewayError(cause.status, cause.message, param=cause.param)
        elif self._splice.log:
            error = GatewayError(502, "no decode instance could go on with the answer", code="decode_lost")
        else:
            wait_s = UNKNOWN_WAIT_S if self._legs.retry_after_s is None else self._legs.retry_after_s
            message = "no engine instance can take the request"
            error = GatewayError(503, message, code="no_instance", retry_after_s=wait_s)
        self._record.failed(error, cause)
        self._has_end = True
        self._outbox.end(error)

    # The KV

    def _aim(self, request: TransferRequest) -> TransferRequest:
        prefill, main = (self._failover.pick(ROLE_OF[kind]) for kind in (LegKind.PREFILL, LegKind.FINAL))
        return replace(
            request,
            prefill=prefill.spec.id if prefill else None,
            prefill_rank=self._failover.rank_of(prefill) if prefill else None,
            main=main.spec.id if main else None,
            main_rank=self._failover.rank_of(main) if main else None,
        )

    def _align(self) -> None:
        main = self._failover.pick(ROLE_OF[LegKind.FINAL])
        if main is not None:
            note_taken = self._legs.watch_kv(main)
            transfer = self._transfer.give_away()
            log = tuple(self._splice.log)
            job = AlignJob(
                self._plan.request, log, main, self._plan.rules, transfer, note_taken, self._failover.rank_of(main)
            )
            self._aligner.adopt(job)
            self._record.note("aligning", instance=main.spec.id)
        else:
            self._transfer.stop("no_main_instance")
            self._aligner.drop("no_instance")

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
