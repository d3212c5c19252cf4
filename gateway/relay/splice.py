"""The splice: which engine's tokens the client sees, and which legs run. No I/O, no clock, no async.

Theory. The *log* is the list of ids that the client has been given. Position i is the i-th output token. A *leg* is one
engine call whose prompt is the request's prompt plus the first ``base`` ids of the log, so the k-th id that it returns
belongs to position ``base + k``. At most one leg, the *writer*, may append to the log. A leg becomes the writer when it
brings position ``len(log)`` while nobody writes. Everything else that a leg returns is dropped and counted. From this
follow the promises: positions are gapless, unique and in order, whoever makes the tokens.

    PREFILL   a P leg runs (one token), the KV moves to the main region at the same time
    WAIT      nobody writes: the KV, or an instance, is awaited
    EAGER     a relay leg writes: its tokens are the eager ones, made before MD has the KV. Where the plan is fused
              it is the P leg, which does not stop at its first token
    CATCH_UP  a relay leg writes, and an extend (one token, dropped) brings a main instance near the log; the first one
              has it load the KV
    FINAL     the log is sealed; a final leg has its whole prompt and has not answered yet
    MAIN      a final leg writes
    DONE      finished, failed, or the client is gone

Rules.
1. ``feed`` turns one event into actions. The caller carries them out in order. An event that makes no sense raises
   ``IllegalEvent`` and changes nothing. Late events of legs that were closed are no error: they are dropped.
2. Each leg that was started ends exactly once: by LegEnded, by LegFailed, by LegUnplaced, or by CloseLeg.
3. Who goes on when a writer is lost is decided in one place, ``_resume``.
4. What is decided by load (one-shot or catch-up, how much, whether P writes on) is asked of ``SpliceTerms.decide``
   and ``leaves_prefill``, which alone look at the fleet.
5. An id of ``terminators`` ends the answer, whether its leg says so with it, later, or not at all.
6. An answer that must not be split (``splittable`` false) has one writer for all of its tokens.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from backends.types import TransferPriority
from gateway.relay.splice_events import (
    Action,
    ClientGone,
    CloseLeg,
    End,
    Event,
    Fail,
    IllegalEvent,
    KvFailed,
    KvLate,
    KvReady,
    KvState,
    KvUnseen,
    LegEnded,
    LegFailed,
    LegId,
    LegKind,
    LegTokens,
    LegUnplaced,
    Phase,
    RetryDue,
    RetryLater,
    StartLeg,
    StartTransfer,
    StopMatched,
    StopTransfer,
)
from policies.handoff import ExtendBatch, FinalNow, Handoff, HandoffStep
from policies.plans import Plan


def _stay() -> bool:
    """P is left to nobody."""
    return False


@dataclass(frozen=True, slots=True)
class SpliceTerms:
    """What one answer is bound by.

    ``classic``: P's token is dropped. ``relay_allowed``: an RLD may be used, by plan or in need.
    ``limit_tokens``: most output tokens (client's limit and context), at least 1. ``terminators``: ids that end an
    answer and have no text. ``max_attempts``: how many times in a row nobody may be found before the answer fails.
    ``leaves_prefill``: a P that writes on has no room for it any more, and an RLD can.
    """

    plan: Plan
    splittable: bool
    classic: bool
    relay_allowed: bool
    limit_tokens: int
    min_tokens: int
    terminators: frozenset[int]
    max_attempts: int
    decide: Callable[[Handoff], HandoffStep]
    leaves_prefill: Callable[[], bool] = _stay


@dataclass(slots=True)
class _Leg:
    kind: LegKind
    base: int
    shown: bool
    """What it returns may become part of the log."""
    brief: bool
    """It makes one token."""
    received: int = 0


@dataclass(slots=True)
class Splice:
    """State of one answer. Read ``log``, ``phase``, ``kv`` and ``discarded_tokens`` freely; write nothing."""

    terms: SpliceTerms
    phase: Phase = Phase.PREFILL
    kv: KvState = KvState.ABSENT
    log: list[int] = field(default_factory=list)
    sealed: int = 0
    rounds: int = 0
    _previous_pending: int | None = None
    discarded_tokens: int = 0
    _legs: dict[LegId, _Leg] = field(default_factory=dict)
    _next_leg: int = 0
    _writer: LegId | None = None
    _relaying: bool = False
    _main_blocked: bool = False
    _relay_blocked: bool = False
    _relay_spent: bool = False
    """RLD has ended short of its limit: it would do so again."""
    _retry_pending: bool = False
    _late: bool = False
    _main_cold: bool = True
    _attempts: int = 0
    _setbacks: int = 0
    _out: list[Action] = field(default_factory=list)

    @property
    def kv_priority(self) -> TransferPriority:
        """Who waits for the KV just now."""
        if self.phase is Phase.WAIT or (self.phase is Phase.PREFILL and not self._relaying):
            return "waiting"
        return "relay" if self.phase in (Phase.PREFILL, Phase.EAGER, Phase.CATCH_UP) else "later"

    def start(self) -> list[Action]:
        """Begin: the P leg, if there is one, and the transfer where the plan moves KV."""
        self._relay_blocked = not self.terms.relay_allowed
        if not self.terms.plan.has_prefill:
            self.kv = KvState.UNNEEDED
            self._start_final()
            return self._flush()
        self._relaying = self.terms.plan.relays_first
        self._start(LegKind.PREFILL)
        if self.terms.plan.moves_kv:
            self._move()
        return self._flush()

    def feed(self, event: Event) -> list[Action]:
        """Take one event, give the actions that follow from it. Raises IllegalEvent."""
        match event:
            case LegTokens():
                self._on_tokens(event)
            case LegEnded() | LegFailed() | LegUnplaced():
                self._on_leg(event)
            case KvReady() | KvFailed() | KvUnseen() | KvLate():
                self._on_kv(event)
            case RetryDue():
                self._on_retry()
            case StopMatched(completion_tokens):
                self._on_stop(completion_tokens)
            case ClientGone() if self.phase is not Phase.DONE:
                self._close_all()
                self._out.append(StopTransfer())
            case ClientGone():
                pass
        out, self._out = self._out, []
        return out

    # Legs

    def _on_tokens(self, event: LegTokens) -> None:
        tokens, count = event.tokens, len(event.tokens.ids)
        leg = self._legs.get(event.leg)
        if leg is None:
            self._check_started(event.leg)
            self.discarded_tokens += count
            return
        if tokens.position != leg.base + leg.received:
            raise IllegalEvent(f"leg {event.leg} is at {leg.base + leg.received}, not at {tokens.position}")
        leg.received += count
        if not leg.shown or (self._writer != event.leg and not self._is_next(tokens.position)):
            self.discarded_tokens += count
            return
        room = self.terms.limit_tokens - len(self.log)
        # One that was asked for one id has nothing to say of the next: it may not know all that binds it.
        fitting, is_ended = self._fit(tokens.ids, min(room, 1 + count - leg.received) if leg.brief else room)
        if count > fitting:
            self.discarded_tokens += count - fitting
            kept = tokens.logprobs and tokens.logprobs[:fitting]
            tokens = msgspec.structs.replace(tokens, ids=tokens.ids[:fitting], logprobs=kept)
        if tokens.ids:
            self._writer = event.leg
            self._attempts = 0
            self.log += tokens.ids
            self._out.append(tokens)
            if self.phase is Phase.FINAL:
                self.phase = Phase.MAIN
                self._setbacks = 0
                self._main_cold = False
        if is_ended or (event.finish == "stop" and fitting == count):
            self._end("stop")
        elif fitting >= room:
            self._end("length")
        elif event.finish == "length" and not leg.brief:
            self._on_short(event.leg, leg)
        elif leg.kind is LegKind.PREFILL and not leg.brief and tokens.ids:
            self._write_on(event.leg)

    def _write_on(self, id_: LegId) -> None:
        """P has made tokens and goes on in RLD's place, unless it shall be left to its prefill."""
        if self.phase is Phase.PREFILL:
            self.phase = Phase.EAGER
            self._hand_over()
        if self.phase is Phase.EAGER and not self._relay_blocked and self.terms.leaves_prefill():
            self._close(id_)
            self._resume()

    def _fit(self, ids: tuple[int, ...], room: int) -> tuple[int, bool]:
        """How many of the next ids are the answer's, and whether the last of them ends it, said or not."""
        if not self.terms.terminators.isdisjoint(ids):
            for at, id_ in enumerate(ids[: max(0, room)]):
                if id_ in self.terms.terminators and len(self.log) + at >= self.terms.min_tokens:
                    return at + 1, True
        return min(len(ids), max(0, room)), False

    def _on_short(self, id_: LegId, leg: _Leg) -> None:
        """An engine's own limit came before the answer's: before MD it ends the leg only, and MD goes on."""
        if leg.kind is LegKind.FINAL or not self.terms.splittable:
            self._end("length")
            return
        self._relay_spent |= leg.kind is LegKind.RELAY
        self._relay_blocked |= self._relay_spent
        self._close(id_)
        self._resume()

    def _is_next(self, position: int) -> bool:
        return self._writer is None and position == len(self.log)

    def _check_started(self, id_: LegId) -> None:
        if not 0 <= id_ < self._next_leg:
            raise IllegalEvent(f"leg {id_} was never started")

    def _on_leg(self, event: LegEnded | LegFailed | LegUnplaced) -> None:
        self._check_started(event.leg)
        leg = self._legs.get(event.leg)
        if leg is None:
            return
        self._drop(event.leg)
        match event:
            case LegEnded():
                self._on_ended(leg)
            case LegFailed(refused=True) if not self.log:
                self._fail(event.leg)
            case LegFailed():
                self._on_lost(leg)
            case LegUnplaced():
                self._on_unplaced(leg)

    def _on_ended(self, leg: _Leg) -> None:
        if leg.kind is LegKind.PREFILL and leg.brief and leg.received:
            self._resume()
        elif leg.kind is LegKind.EXTEND and leg.received:
            self.sealed = leg.base
            self.rounds += 1
            self._main_cold = False
            self.phase = Phase.EAGER
            self._hand_over()
        else:  # it ended without having said why: no better than a failure
            self._on_lost(leg)

    def _on_lost(self, leg: _Leg) -> None:
        self._attempts += 1
        self._setbacks += 1
        self._main_cold |= leg.kind in (LegKind.EXTEND, LegKind.FINAL)
        match leg.kind:
            case LegKind.PREFILL if not self.log:
                self._again_or_fail(lambda: self._start(LegKind.PREFILL))
            case LegKind.EXTEND:
                self.phase = Phase.EAGER
                self._hand_over()
            case _:
                self._again_or_fail(self._resume)

    def _on_unplaced(self, leg: _Leg) -> None:
        if leg.kind is LegKind.PREFILL:
            self._fail(None)
            return
        self._setbacks += 1
        self._wait()
        if leg.kind is LegKind.RELAY:
            self._relay_blocked = True
        else:
            self._main_blocked = self._main_cold = True
        if leg.kind is LegKind.EXTEND:
            self.phase = Phase.EAGER
        else:
            self._resume()

    def _again_or_fail(self, again: Callable[[], None]) -> None:
        cut = bool(self.log) and not self.terms.splittable
        if cut or self._attempts > self.terms.max_attempts:
            self._fail(None)
        else:
            again()

    # The KV and time

    def _on_kv(self, event: KvReady | KvFailed | KvUnseen | KvLate) -> None:
        if self.kv is KvState.ABSENT:
            raise IllegalEvent("no transfer was started")
        if self.phase is Phase.DONE:
            return
        match event:
            case KvReady():
                self.kv = KvState.READY
            case KvFailed():
                self.kv = KvState.FAILED
                self._setbacks += 1
                self._relaying = True
                self._wait()
            case KvUnseen():
                self.kv = KvState.HOPELESS
            case KvLate():
                self._relaying = self._late = True
        if self.phase is Phase.WAIT:
            self._resume()
        elif self.phase is Phase.EAGER:
            self._hand_over()

    def _on_retry(self) -> None:
        if not self._retry_pending:
            raise IllegalEvent("no retry is pending")
        self._retry_pending = False
        if self.phase is Phase.DONE:
            return
        self._main_blocked = False
        self._relay_blocked = self._relay_spent or not self.terms.relay_allowed
        if self.kv is KvState.FAILED:
            self._move()
        if self.phase is Phase.WAIT:
            self._resume()
        elif self.phase is Phase.EAGER:
            self._hand_over()

    def _on_stop(self, completion_tokens: int) -> None:
        if not 0 < completion_tokens <= len(self.log):
            raise IllegalEvent(f"a stop at {completion_tokens} of {len(self.log)} tokens")
        if self.phase is not Phase.DONE:
            del self.log[completion_tokens:]
            self._end("stop", matched=True)

    # Decisions

    def _resume(self) -> None:
        """Nobody writes (any more): choose who goes on."""
        if self.kv in (KvState.READY, KvState.UNNEEDED, KvState.HOPELESS) and not self._main_blocked:
            self._start_final()
        elif (self._relaying or self._main_blocked) and not self._relay_blocked:
            self.phase = Phase.EAGER
            self.sealed = self.rounds = 0
            self._previous_pending = None
            self._start(LegKind.RELAY)
        elif self.kv is KvState.ABSENT:
            self.phase = Phase.WAIT
            self._move()
        elif self.kv is KvState.MOVING and not self._late:
            self.phase = Phase.WAIT
        elif not self._main_blocked:  # without its KV an instance computes the prompt again: slow, but an answer
            self._start_final()
        else:
            self._attempts += 1
            self.phase = Phase.WAIT
            self._again_or_fail(self._wait)

    def _hand_over(self) -> None:
        """The KV is there, or never will be, and a relay leg writes: seal now, or bring MD nearer first."""
        if self.kv not in (KvState.READY, KvState.HOPELESS) or self._main_blocked or not self.terms.splittable:
            return
        pending, is_cold = len(self.log) - self.sealed, self._main_cold
        step = self.terms.decide(Handoff(pending, self.rounds, self._previous_pending, is_cold))
        self._previous_pending = None if is_cold else pending
        match step:
            case FinalNow():
                self._start_final()
            case ExtendBatch(tokens):
                self.phase = Phase.CATCH_UP
                self._start(LegKind.EXTEND, base=min(self.sealed + tokens, len(self.log)))

    def _start_final(self) -> None:
        for id_ in list(self._legs):
            self._close(id_)
        self.phase = Phase.FINAL
        self.sealed = len(self.log)
        self._start(LegKind.FINAL)

    def _end(self, reason: Literal["stop", "length"], *, matched: bool = False) -> None:
        terminator = not matched and reason == "stop" and bool(self.log) and self.log[-1] in self.terms.terminators
        by_relay = self.phase in (Phase.EAGER, Phase.CATCH_UP)
        self._close_all()
        self._out.append(End(reason, terminator, align=by_relay and self.kv is not KvState.ABSENT))

    def _fail(self, refused: LegId | None) -> None:
        self._close_all()
        self._out += (StopTransfer(), Fail(refused))

    # Actions

    def _start(self, kind: LegKind, base: int | None = None) -> None:
        base = len(self.log) if base is None else base
        id_ = LegId(self._next_leg)
        self._next_leg += 1
        shown = kind is not LegKind.EXTEND and not (kind is LegKind.PREFILL and self.terms.classic)
        brief = kind is LegKind.EXTEND or (kind is LegKind.PREFILL and not self.terms.plan.fused)
        self._legs[id_] = _Leg(kind, base, shown, brief)
        max_tokens = 1 if brief else self.terms.limit_tokens - base
        least = 0 if kind is LegKind.EXTEND else max(0, self.terms.min_tokens - base)
        kv_expected = kind is not LegKind.PREFILL and (kind is LegKind.RELAY or self.kv is KvState.READY)
        self._out.append(StartLeg(id_, kind, base, max_tokens, min(least, max_tokens), kv_expected))

    def _move(self) -> None:
        self.kv = KvState.MOVING
        self._out.append(StartTransfer())

    def _wait(self) -> None:
        if not self._retry_pending:
            self._retry_pending = True
            self._out.append(RetryLater(max(1, self._setbacks)))

    def _close(self, id_: LegId) -> None:
        self._drop(id_)
        self._out.append(CloseLeg(id_))

    def _drop(self, id_: LegId) -> None:
        del self._legs[id_]
        if self._writer == id_:
            self._writer = None

    def _close_all(self) -> None:
        for id_ in list(self._legs):
            self._close(id_)
        self.phase = Phase.DONE

    def _flush(self) -> list[Action]:
        out, self._out = self._out, []
        return out
