"""Plays engines, link and clock against the splice, in any order that a chooser picks."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from gateway.relay.splice import Splice, SpliceTerms
from gateway.relay.splice_events import (
    Action,
    ClientGone,
    CloseLeg,
    End,
    Event,
    Fail,
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
    RetryDue,
    RetryLater,
    StartLeg,
    StartTransfer,
    StopMatched,
    StopTransfer,
)
from gateway.relay.types import Tokens

Choose = Callable[[int], int]
"""Gives a number in 0 .. n-1."""

EOS = 7


def next_id(log: list[int]) -> int:
    """The scripted model: the next id follows from what was there before, so that any slip changes what comes after."""
    value = 1
    for position, id_ in enumerate(log):
        value = (value * 31 + id_ * 17 + position) % 9973
    return 10 + value % 500


@dataclass(slots=True)
class World:
    """Legs that run and what the splice asked for. ``trouble``: how many bad things may still happen.

    ``is_main_warm``: an MD has answered an extend, and none was lost since.
    """

    terms: SpliceTerms
    choose: Choose
    trouble: int
    eos_at: int | None = None
    emitted: list[int] = field(default_factory=list)
    started: dict[LegId, StartLeg] = field(default_factory=dict)
    running: dict[LegId, list[int]] = field(default_factory=dict)
    ended_legs: list[LegId] = field(default_factory=list)
    closed: dict[LegId, list[int]] = field(default_factory=dict)
    """Legs that were closed, and up to where they came: what they still bring is late."""
    was_refused: bool = False
    short: set[LegId] = field(default_factory=set)
    """Legs that their engines' own limits ended."""
    moving: bool = False
    retry: bool = False
    end: End | None = None
    failed: Fail | None = None
    is_main_warm: bool = False
    splice: Splice = field(init=False)

    def __post_init__(self) -> None:
        self.splice = Splice(self.terms)
        self.obey(self.splice.start())

    @property
    def over(self) -> bool:
        """Whether the client has its end."""
        return self.end is not None or self.failed is not None

    def obey(self, actions: list[Action]) -> None:
        """Carry out actions, checking that each makes sense."""
        for action in actions:
            match action:
                case StartLeg():
                    assert action.leg not in self.started
                    assert 0 <= action.min_tokens <= action.max_tokens and action.max_tokens >= 1
                    assert not self.over
                    assert self.is_main_warm or not self._stops_writer_for(action, actions)
                    self.started[action.leg] = action
                    self.running[action.leg] = list(self.splice.log[: action.base])
                case CloseLeg(leg):
                    self.closed[leg] = self.running[leg]
                    self._finish_leg(leg)
                case Tokens(position, ids):
                    assert not self.over and ids and position == len(self.emitted)
                    self.emitted += ids
                case StartTransfer():
                    assert not self.moving
                    self.moving = True
                case StopTransfer():
                    self.moving = False
                case RetryLater(attempt):
                    assert attempt >= 1 and not self.retry
                    self.retry = True
                case End():
                    assert not self.over
                    self.end = action
                case Fail():
                    assert not self.over
                    self.failed = action

    def feed(self, event: Event) -> None:
        """Tell the splice."""
        if isinstance(event, LegEnded | LegFailed | LegUnplaced):
            kind = self.started[event.leg].kind
            if kind in (LegKind.EXTEND, LegKind.FINAL):
                self.is_main_warm = kind is LegKind.EXTEND and isinstance(event, LegEnded)
        self.obey(self.splice.feed(event))

    def _stops_writer_for(self, start: StartLeg, actions: list[Action]) -> bool:
        """Whether one that writes before MD does is stopped so that MD goes on."""
        closed = [
            self.started[action.leg].kind
            for action in actions
            if isinstance(action, CloseLeg) and action.leg not in self.short
        ]
        writes_on = LegKind.PREFILL in closed and self.terms.plan.fused
        return start.kind is LegKind.FINAL and (LegKind.RELAY in closed or writes_on)

    def step(self) -> bool:
        """Let one thing happen; False when nothing can."""
        options: list[Callable[[], None]] = [lambda leg=leg: self._advance(leg) for leg in self.running]  # type: ignore[misc]
        if self.moving:
            options.append(self._kv_ready)
        if self.retry:
            options.append(self._retry_due)
        if not options:
            return False
        if self.trouble and self.choose(3) == 0:
            self.trouble -= 1
            self._make_trouble()
        else:
            options[self.choose(len(options))]()
        return True

    def _finish_leg(self, leg: LegId) -> None:
        del self.running[leg]
        self.ended_legs.append(leg)

    def _advance(self, leg: LegId) -> None:
        start, context = self.started[leg], self.running[leg]
        made = len(context) - start.base
        if made >= start.max_tokens:
            self._finish_leg(leg)
            self.feed(LegEnded(leg))
            return
        finish = self._say(leg, context, min(1 + self.choose(4), start.max_tokens - made))
        if finish and leg in self.running:
            self._finish_leg(leg)
            self.feed(LegEnded(leg))

    def _say(
        self, leg: LegId, context: list[int], count: int, *, tells: bool = True, short: bool = False
    ) -> Literal["stop", "length"] | None:
        """A leg brings so many ids; ``tells`` False: it goes on after its end; ``short``: at its engine's limit."""
        start, position = self.started[leg], len(context)
        ids: list[int] = []
        finish: Literal["stop", "length"] | None = "length" if short else None
        for _ in range(count):
            ends = self.eos_at is not None and len(context) >= max(self.eos_at, start.base + start.min_tokens)
            id_ = EOS if ends and EOS not in context else next_id(context)
            context.append(id_)
            ids.append(id_)
            if ends and tells:
                finish = "stop"
                break
        if finish is None and tells and len(context) - start.base >= start.max_tokens:
            finish = "length"
        self.feed(LegTokens(leg, Tokens(position, tuple(ids), None, "RLD", "rld1"), finish))
        return finish

    def _kv_ready(self) -> None:
        self.moving = False
        self.feed(KvReady())

    def _retry_due(self) -> None:
        self.retry = False
        self.feed(RetryDue())

    def _make_trouble(self) -> None:
        legs = list(self.running)
        if self.closed and not self.choose(4):
            self._be_late(list(self.closed)[self.choose(len(self.closed))])
        elif legs and not self.choose(3):
            self._be_odd(legs[self.choose(len(legs))])
        elif legs and self.choose(3):
            leg = legs[self.choose(len(legs))]
            untouched = len(self.running[leg]) == self.started[leg].base
            is_prefill = self.started[leg].kind is LegKind.PREFILL
            self._finish_leg(leg)
            self.feed(LegUnplaced(leg) if untouched and not is_prefill and self.choose(2) else LegFailed(leg))
        elif self.moving:
            if self.choose(2):
                self.moving = False
                self.feed(KvFailed() if self.choose(2) else KvUnseen())
            else:
                self.feed(KvLate())
        elif self.splice.kv is not KvState.ABSENT:
            self.feed(KvLate())

    def _be_late(self, leg: LegId) -> None:
        """A closed leg goes on for a while, or ends."""
        late = (lambda: self._say(leg, self.closed[leg], 2), lambda: self.feed(LegEnded(leg)))
        late[self.choose(2)]()

    def _be_odd(self, leg: LegId) -> None:
        """A leg says more than it was asked for, less, no reason, or refuses."""
        start, context = self.started[leg], self.running[leg]
        match self.choose(5):
            case 0:
                self._say(leg, context, 1 + start.max_tokens - (len(context) - start.base))
            case 1:
                self._say(leg, context, 2, tells=False)
            case 2 if start.kind in (LegKind.RELAY, LegKind.PREFILL) and self.terms.splittable:
                self.short.add(leg)
                if self._say(leg, context, 1, short=True) and leg in self.running:
                    self._finish_leg(leg)
                    self.feed(LegEnded(leg))
            case 3:
                self._finish_leg(leg)
                self.feed(LegEnded(leg))
            case 4:
                self.was_refused |= not self.splice.log
                self._finish_leg(leg)
                self.feed(LegFailed(leg, refused=True))

    def leave(self) -> None:
        """The client goes."""
        self.feed(ClientGone())

    def match(self, completion_tokens: int) -> None:
        """The text layer finds a stop string."""
        del self.emitted[completion_tokens:]
        self.feed(StopMatched(completion_tokens))


def unsplit(limit: int, eos_at: int | None, min_tokens: int = 0) -> list[int]:
    """What one engine alone would give."""
    log: list[int] = []
    while len(log) < limit:
        ends = eos_at is not None and len(log) >= max(eos_at, min_tokens)
        log.append(EOS if ends else next_id(log))
        if ends:
            break
    return log
