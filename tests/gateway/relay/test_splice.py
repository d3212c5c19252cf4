"""The splice, by hand step by step and against random worlds."""

from dataclasses import replace
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.relay.splice import Splice, SpliceTerms
from gateway.relay.splice_events import (
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
from gateway.relay.types import Tokens
from policies.handoff import ExtendBatch, FinalNow, Handoff, HandoffStep, choose_step
from policies.plans import Direct, PassThrough, Plan, Relay, Singular
from policies.rules import HandoffRules
from tests.gateway.relay.simulate import EOS, World, unsplit

P, A, B, C, D, E = (LegId(n) for n in range(6))

DIRECT = Direct("p", "md", "same_region")
RELAY = Relay("p", "rld", "md", "wan_slow")
FUSED = Relay("p", "rld", "md", "fused", fused=True)
LONE = Relay("p", None, "md", "fused", fused=True)
SINGULAR = Singular("p", "rld", "singular")


def catch_up(handoff: Handoff) -> HandoffStep:
    """Extend until at most two tokens are pending, at most three rounds."""
    if handoff.pending_tokens <= 2 or handoff.rounds >= 3:
        return FinalNow("small_rest")
    return ExtendBatch(handoff.pending_tokens, "catch_up")


def at_once(handoff: Handoff) -> HandoffStep:
    """One-shot."""
    return FinalNow("one_shot")


TERMS = SpliceTerms(
    plan=RELAY,
    splittable=True,
    classic=False,
    relay_allowed=True,
    limit_tokens=100,
    min_tokens=0,
    terminators=frozenset({EOS}),
    max_attempts=3,
    decide=catch_up,
)


def tokens(leg: LegId, at: int, *ids: int, finish: Literal["stop", "length"] | None = None) -> LegTokens:
    """Shorthand; ``at``: the position of the first id."""
    return LegTokens(leg, said(at, *ids), finish)


def said(position: int, *ids: int) -> Tokens:
    """Ids of some leg."""
    return Tokens(position, ids, None, "RLD", "rld1")


def begun(terms: SpliceTerms = TERMS, *events: Event) -> Splice:
    """A splice to which some events have happened."""
    splice = Splice(terms)
    splice.start()
    for event in events:
        splice.feed(event)
    return splice


PREFILLED = (tokens(P, 0, 10, finish="length"), LegEnded(P))
EAGER = (*PREFILLED, tokens(A, 1, 11, 12, 13))


def test_start_prefills_and_moves_kv_at_once() -> None:
    """The P leg and the transfer start together."""
    assert Splice(TERMS).start() == [StartLeg(P, LegKind.PREFILL, 0, 1, 0, False), StartTransfer()]


def test_prefill_token_is_shown_and_its_end_starts_the_relay() -> None:
    """P's token is output token 0; RLD starts when P's stream ends, with one token less to make."""
    splice = begun()
    assert splice.feed(tokens(P, 0, 10, finish="length")) == [said(0, 10)]
    assert splice.feed(LegEnded(P)) == [StartLeg(A, LegKind.RELAY, 1, 99, 0, True)]
    assert splice.phase is Phase.EAGER


def test_who_waits_for_the_kv() -> None:
    """RLD writes meanwhile; or nobody writes, and the client waits; or nobody needs it just now."""
    splice = begun()
    assert splice.kv_priority == "relay"
    splice.feed(PREFILLED[0])
    splice.feed(PREFILLED[1])
    splice.feed(EAGER[2])
    assert (splice.phase, splice.kv_priority) == (Phase.EAGER, "relay")
    splice.feed(LegFailed(A))
    splice.feed(LegUnplaced(B))
    assert (splice.phase, splice.kv_priority) == (Phase.WAIT, "waiting")
    splice.feed(KvReady())
    assert (splice.phase, splice.kv_priority) == (Phase.FINAL, "later")


@pytest.mark.parametrize(
    ("events", "priority"), [((), "waiting"), ((KvFailed(),), "relay"), ((KvFailed(), ClientGone()), "later")]
)
def test_who_waits_for_the_kv_of_a_direct_answer(events: tuple[Event, ...], priority: str) -> None:
    """The client waits, unless the KV was lost, so that RLD will write once P has ended, or the client has gone."""
    assert begun(replace(TERMS, plan=DIRECT), *events).kv_priority == priority


def test_one_shot_seals_everything() -> None:
    """With one-shot, KV ready stops RLD and sends all its tokens in one final extend."""
    splice = begun(replace(TERMS, decide=at_once), *EAGER)
    assert splice.feed(KvReady()) == [CloseLeg(A), StartLeg(B, LegKind.FINAL, 4, 96, 0, True)]
    assert splice.feed(tokens(A, 4, 99)) == []
    assert splice.discarded_tokens == 1
    assert splice.feed(tokens(B, 4, 14)) == [said(4, 14)]
    assert splice.phase is Phase.MAIN


def test_catch_up_extends_while_rld_goes_on() -> None:
    """With catch-up, RLD writes during the extend and the final extend carries the small rest."""
    splice = begun(TERMS, *EAGER)
    assert splice.feed(KvReady()) == [StartLeg(B, LegKind.EXTEND, 4, 1, 0, True)]
    assert splice.feed(tokens(A, 4, 14)) == [said(4, 14)]
    assert splice.feed(tokens(B, 4, 14, finish="length")) == []
    assert splice.feed(LegEnded(B)) == [CloseLeg(A), StartLeg(C, LegKind.FINAL, 5, 95, 0, True)]
    assert splice.sealed == 5 and splice.rounds == 1


def test_budgets_are_rebased_for_each_leg() -> None:
    """SPL-01, SPL-15: each leg gets what is left of max_tokens and min_tokens, and P never sees min above max."""
    splice = Splice(replace(TERMS, limit_tokens=50, min_tokens=20, decide=at_once))
    assert splice.start()[0] == StartLeg(P, LegKind.PREFILL, 0, 1, 1, False)
    splice.feed(PREFILLED[0])
    assert splice.feed(PREFILLED[1]) == [StartLeg(A, LegKind.RELAY, 1, 49, 19, True)]
    splice.feed(tokens(A, 1, *range(100, 130)))
    assert splice.feed(KvReady())[-1] == StartLeg(B, LegKind.FINAL, 31, 19, 0, True)


def test_first_token_that_ends_the_answer_stops_everything() -> None:
    """SPL-16: EOS from P ends the answer, starts no decode leg and stops the transfer."""
    actions = begun().feed(tokens(P, 0, EOS, finish="stop"))
    assert actions == [said(0, EOS), CloseLeg(P), End("stop", terminator=True, align=False)]


def test_limit_of_one_needs_no_decode_leg() -> None:
    """SPL-13: max_tokens 1 gives P's token and ends."""
    actions = begun(replace(TERMS, limit_tokens=1)).feed(tokens(P, 0, 10, finish="length"))
    assert actions == [said(0, 10), CloseLeg(P), End("length", terminator=False, align=False)]


def test_overshoot_is_cut() -> None:
    """SPL-51: ids beyond the limit never reach the client, whatever a leg delivers."""
    splice = begun(replace(TERMS, limit_tokens=3), *PREFILLED)
    actions = splice.feed(tokens(A, 1, 11, 12, 13, EOS, finish="stop"))
    assert actions[0] == said(1, 11, 12)
    assert actions[-1] == End("length", terminator=False, align=True)
    assert splice.discarded_tokens == 2


def test_answer_that_ends_at_rld_asks_for_alignment() -> None:
    """An answer that RLD ends is complete for the client, and MD may be brought into line."""
    actions = begun(TERMS, *EAGER).feed(tokens(A, 4, EOS, finish="stop"))
    assert actions[-1] == End("stop", terminator=True, align=True)


def test_direct_waits_for_the_kv() -> None:
    """Direct shows P's token and then waits for MD's KV without a relay."""
    splice = begun(replace(TERMS, plan=DIRECT), *PREFILLED)
    assert splice.phase is Phase.WAIT
    assert splice.feed(KvReady()) == [StartLeg(A, LegKind.FINAL, 1, 99, 0, True)]


def test_late_kv_turns_direct_into_relay() -> None:
    """When the KV is late, a relay takes over from waiting; the hand-off still comes."""
    splice = begun(replace(TERMS, plan=DIRECT), *PREFILLED)
    assert splice.feed(KvLate()) == [StartLeg(A, LegKind.RELAY, 1, 99, 0, True)]
    splice.feed(tokens(A, 1, 11))
    assert splice.feed(KvReady()) == [CloseLeg(A), StartLeg(B, LegKind.FINAL, 2, 98, 0, True)]


def test_direct_without_kv_goes_on_at_main() -> None:
    """KV that never comes is not waited for: MD computes the prompt, and no transfer is opened again."""
    splice = begun(replace(TERMS, plan=DIRECT), *PREFILLED)
    assert splice.feed(KvUnseen()) == [StartLeg(A, LegKind.FINAL, 1, 99, 0, False)]


def test_relay_without_kv_ends_at_main() -> None:
    """While RLD writes, MD computes the prompt in an extend of its own; then the hand-off is as ever."""
    splice = begun(TERMS, *EAGER)
    assert splice.feed(KvUnseen()) == [StartLeg(B, LegKind.EXTEND, 4, 1, 0, False)]
    splice.feed(tokens(A, 4, 14))
    splice.feed(tokens(B, 4, 14, finish="length"))
    assert splice.feed(LegEnded(B)) == [CloseLeg(A), StartLeg(C, LegKind.FINAL, 5, 95, 0, False)]


def test_classic_drops_the_prefill_token() -> None:
    """Classic direct: P's token is not shown, MD makes every token."""
    splice = begun(replace(TERMS, plan=DIRECT, splittable=False, classic=True), *PREFILLED)
    assert splice.log == [] and splice.discarded_tokens == 1
    assert splice.feed(KvReady()) == [StartLeg(A, LegKind.FINAL, 0, 100, 0, True)]


def test_unsplittable_answer_fails_when_its_writer_dies() -> None:
    """An answer that must not be split ends in an error once its engine is lost in the middle."""
    terms = replace(TERMS, plan=DIRECT, splittable=False, classic=True)
    splice = begun(terms, *PREFILLED, KvReady(), tokens(A, 0, 5))
    assert splice.feed(LegFailed(A)) == [StopTransfer(), Fail(None)]


def test_passthrough_is_one_leg() -> None:
    """PassThrough starts MD at once and moves nothing."""
    splice = Splice(replace(TERMS, plan=PassThrough("md", "echo"), relay_allowed=False))
    assert splice.start() == [StartLeg(P, LegKind.FINAL, 0, 100, 0, False)]
    splice.feed(tokens(P, 0, 1))
    assert splice.phase is Phase.MAIN


def test_a_cold_main_is_told_until_one_has_answered() -> None:
    """SPL-46: the hand-off is decided as one to a cold MD at first and after a lost final, until an extend answers."""
    told: list[bool] = []

    def decide(handoff: Handoff) -> HandoffStep:
        told.append(handoff.main_cold)
        is_warmed = handoff.main_cold and len(told) > 1
        return ExtendBatch(handoff.pending_tokens, "main_cold") if is_warmed else FinalNow("one_shot")

    splice = begun(replace(TERMS, decide=decide), *EAGER, KvReady())
    splice.feed(LegFailed(B))
    splice.feed(LegUnplaced(C))
    assert splice.feed(RetryDue()) == [StartLeg(E, LegKind.EXTEND, 4, 1, 0, True)]
    splice.feed(tokens(E, 4, 14, finish="length"))
    assert splice.feed(LegEnded(E))[-1] == StartLeg(LegId(6), LegKind.FINAL, 4, 96, 0, True)
    assert told == [True, True, False]


def test_dead_rld_is_replaced_by_md_when_the_kv_is_there() -> None:
    """RLD dies during catch-up: the final goes to MD at once."""
    splice = begun(TERMS, *EAGER, KvReady())
    assert splice.feed(LegFailed(A)) == [CloseLeg(B), StartLeg(C, LegKind.FINAL, 4, 96, 0, True)]


def test_dead_rld_is_replaced_by_another_before_the_kv_is_there() -> None:
    """RLD dies while the KV moves: another RLD goes on from the log."""
    splice = begun(TERMS, *EAGER)
    assert splice.feed(LegFailed(A)) == [StartLeg(B, LegKind.RELAY, 4, 96, 0, True)]
    assert splice.feed(LegUnplaced(B)) == [RetryLater(2)]
    assert splice.phase is Phase.WAIT
    assert splice.feed(KvReady()) == [StartLeg(C, LegKind.FINAL, 4, 96, 0, True)]


def test_without_relay_and_kv_md_computes_the_prompt_again() -> None:
    """No RLD and a broken link: MD recomputes rather than letting the answer die."""
    splice = begun(TERMS, *EAGER, LegFailed(A), LegUnplaced(B))
    assert splice.feed(KvFailed()) == [StartLeg(C, LegKind.FINAL, 4, 96, 0, False)]


def test_dead_md_is_replaced_by_rld_until_one_is_back() -> None:
    """MD dies in the middle: another MD, else RLD goes on and a later retry hands over again."""
    splice = begun(replace(TERMS, decide=at_once), *EAGER, KvReady(), tokens(B, 4, 14))
    assert splice.feed(LegFailed(B)) == [StartLeg(C, LegKind.FINAL, 5, 95, 0, True)]
    assert splice.feed(LegUnplaced(C)) == [RetryLater(2), StartLeg(D, LegKind.RELAY, 5, 95, 0, True)]
    assert splice.feed(tokens(D, 5, 15)) == [said(5, 15)]
    assert splice.feed(RetryDue()) == [CloseLeg(D), StartLeg(LegId(5), LegKind.FINAL, 6, 94, 0, True)]


def test_failed_transfer_is_opened_again() -> None:
    """The transfer is retried by back-off while RLD goes on."""
    splice = begun(TERMS, *EAGER)
    assert splice.feed(KvFailed()) == [RetryLater(1)]
    assert splice.feed(RetryDue()) == [StartTransfer()]
    assert splice.kv is KvState.MOVING


def test_nobody_left_fails_after_the_attempts() -> None:
    """With no decode instance the client gets an error, after a bounded number of rounds."""
    splice = begun(TERMS, *EAGER, KvReady(), LegFailed(A))
    events: list[Event] = []
    leg = 3
    for _ in range(40):
        actions = splice.feed(LegUnplaced(LegId(leg)))
        events += [action for action in actions if isinstance(action, Fail)]  # type: ignore[misc]
        if splice.phase is Phase.DONE:
            break
        starts = [action for action in actions if isinstance(action, StartLeg)]
        if not starts:
            starts = [action for action in splice.feed(RetryDue()) if isinstance(action, StartLeg)]
        leg = starts[-1].leg
    assert len(events) == 1


def test_prefill_is_tried_elsewhere_before_its_token() -> None:
    """SPL-23: P fails before its token, another P gets a new leg; with none left the answer fails."""
    splice = begun()
    assert splice.feed(LegFailed(P)) == [StartLeg(A, LegKind.PREFILL, 0, 1, 0, False)]
    assert splice.feed(LegUnplaced(A)) == [StopTransfer(), Fail(None)]


def test_refused_request_is_not_tried_again() -> None:
    """An engine that refuses the request itself ends the answer: another one would refuse too."""
    assert begun().feed(LegFailed(P, refused=True)) == [StopTransfer(), Fail(P)]


def test_singular_moves_nothing_until_it_must() -> None:
    """Singular starts no transfer; if RLD is lost for good, the KV is moved after all."""
    splice = Splice(replace(TERMS, plan=SINGULAR))
    assert splice.start() == [StartLeg(P, LegKind.PREFILL, 0, 1, 0, False)]
    for event in PREFILLED:
        splice.feed(event)
    assert splice.feed(LegFailed(A)) == [StartLeg(B, LegKind.RELAY, 1, 99, 0, True)]
    assert splice.feed(LegUnplaced(B)) == [RetryLater(2), StartTransfer()]


def test_stop_string_ends_the_answer_at_its_token() -> None:
    """A stop match closes the legs and finishes with the ids up to the match."""
    splice = begun(TERMS, *EAGER)
    assert splice.feed(StopMatched(2)) == [CloseLeg(A), End("stop", terminator=False, align=True)]
    assert splice.log == [10, 11]


def test_client_gone_closes_everything_once() -> None:
    """A client that leaves ends every leg and the transfer; what comes later is dropped."""
    splice = begun(TERMS, *EAGER, KvReady())
    assert splice.feed(ClientGone()) == [CloseLeg(A), CloseLeg(B), StopTransfer()]
    assert splice.feed(ClientGone()) == []
    assert splice.feed(tokens(A, 4, 5)) == []


@pytest.mark.parametrize(
    "event",
    [tokens(LegId(9), 1), LegEnded(LegId(9)), RetryDue(), StopMatched(5), StopMatched(0)],
    ids=lambda event: type(event).__name__,
)
def test_illegal_events_change_nothing(event: Event) -> None:
    """An event that cannot happen raises and leaves the state as it was."""
    splice = begun(TERMS, *EAGER)
    before = (list(splice.log), splice.phase, splice.kv)
    with pytest.raises(IllegalEvent):
        splice.feed(event)
    assert (list(splice.log), splice.phase, splice.kv) == before


def test_kv_events_without_a_transfer_are_illegal() -> None:
    """A singular answer has no transfer that could be ready."""
    splice = Splice(replace(TERMS, plan=SINGULAR))
    splice.start()
    with pytest.raises(IllegalEvent):
        splice.feed(KvReady())


def test_writer_that_ends_without_a_reason_is_replaced() -> None:
    """A stream that just ends is no end of the answer."""
    assert begun(TERMS, *EAGER).feed(LegEnded(A)) == [StartLeg(B, LegKind.RELAY, 4, 96, 0, True)]


def test_a_lost_extend_is_no_reason_to_stop_rld() -> None:
    """By the real policy: MD was lost in its extend, so another has to answer one before RLD is stopped for it."""
    terms = replace(TERMS, decide=lambda handoff: choose_step(handoff, 0.0, None, HandoffRules(mode="catch_up")))
    splice = begun(terms, *EAGER, tokens(A, 4, *range(100, 140)), KvReady())
    assert splice.phase is Phase.CATCH_UP
    actions = splice.feed(LegFailed(B))
    assert [type(action) for action in actions] == [StartLeg] and splice.phase is Phase.CATCH_UP


def test_failed_extend_lets_rld_go_on() -> None:
    """A failed extend is tried elsewhere; with no MD left RLD goes on and a retry is due."""
    splice = begun(TERMS, *EAGER, KvReady())
    assert splice.feed(LegFailed(B)) == [StartLeg(C, LegKind.EXTEND, 4, 1, 0, True)]
    assert splice.feed(LegUnplaced(C)) == [RetryLater(2)]
    assert splice.phase is Phase.EAGER
    assert splice.feed(tokens(A, 4, 14)) == [said(4, 14)]


def test_an_end_is_an_end_though_its_leg_says_so_later_or_never() -> None:
    """An id that ends an answer ends it at once; what its leg brings behind it is dropped, and nobody goes on."""
    splice = begun(TERMS, *PREFILLED)
    actions = splice.feed(tokens(A, 1, 11, EOS, 12))
    assert actions[0] == said(1, 11, EOS) and splice.log == [10, 11, EOS] and splice.discarded_tokens == 1
    assert End("stop", True, align=True) in actions and splice.phase is Phase.DONE
    assert splice.feed(tokens(A, 4, finish="stop")) == splice.feed(LegEnded(A)) == []
    by_prefill = begun()
    assert by_prefill.feed(tokens(P, 0, EOS))[0] == said(0, EOS) and by_prefill.phase is Phase.DONE


def test_below_min_tokens_no_id_is_an_end() -> None:
    """An id that may not end the answer yet is one like any other."""
    splice = begun(replace(TERMS, min_tokens=3), *PREFILLED)
    assert splice.feed(tokens(A, 1, EOS, 12)) == [said(1, EOS, 12)]
    assert splice.feed(tokens(A, 3, EOS))[0] == said(3, EOS) and splice.phase is Phase.DONE


def test_rld_s_own_limit_is_the_end_of_its_leg_only() -> None:
    """RLD that ends short of what it was asked for is not started again; MD goes on, once the KV is there."""
    splice = begun(TERMS, *EAGER)
    assert splice.feed(tokens(A, 4, 14, finish="length")) == [said(4, 14), CloseLeg(A)]
    assert splice.phase is Phase.WAIT
    assert splice.feed(KvReady()) == [StartLeg(B, LegKind.FINAL, 5, 95, 0, True)]
    assert splice.feed(LegUnplaced(B)) == [RetryLater(1)]
    assert splice.feed(RetryDue()) == [StartLeg(C, LegKind.FINAL, 5, 95, 0, True)]
    whole = begun(replace(TERMS, splittable=False), *EAGER)
    assert End("length", False, align=True) in whole.feed(tokens(A, 4, 14, finish="length"))


def test_without_relay_a_lost_main_of_a_plan_without_p_is_replaced_by_no_rld() -> None:
    """Where the rules know no relay, no answer ever starts one, also none that began on MD alone."""
    splice = begun(replace(TERMS, plan=PassThrough("md", "echo"), relay_allowed=False))
    splice.feed(tokens(P, 0, 10))
    for _ in range(2):
        assert all(
            action.kind is LegKind.FINAL
            for action in splice.feed(LegFailed(LegId(splice._next_leg - 1)))
            if isinstance(action, StartLeg)
        )
    assert splice.feed(LegUnplaced(LegId(splice._next_leg - 1))) == [RetryLater(3)]


HANDOFFS = st.builds(
    HandoffRules,
    mode=st.sampled_from(["auto", "one_shot", "catch_up"]),
    threshold_tokens=st.integers(0, 8),
    batch_tokens=st.integers(1, 8),
    max_rounds=st.integers(1, 3),
)
PLANS = st.sampled_from([DIRECT, RELAY, FUSED, LONE, SINGULAR, PassThrough("md", "echo")])


@pytest.mark.timeout(120)
@settings(max_examples=400, deadline=None)
@given(
    data=st.data(),
    plan=PLANS,
    limit=st.integers(1, 40),
    eos_at=st.none() | st.integers(0, 40),
    trouble=st.integers(0, 6),
    splittable=st.booleans(),
    rules=HANDOFFS,
    load=st.sampled_from([0.0, 1.0]),
    relay_allowed=st.booleans(),
    min_tokens=st.integers(0, 40),
)
def test_any_course_gives_the_unsplit_answer(
    data: st.DataObject,
    plan: Plan,
    limit: int,
    eos_at: int | None,
    trouble: int,
    splittable: bool,
    rules: HandoffRules,
    load: float,
    relay_allowed: bool,
    min_tokens: int,
) -> None:
    """Whatever the order of events and failures: the client's ids are those of one engine, each leg ends once.

    And RLD is never stopped for an MD that has not answered. Engines say too much and too little, nothing of their
    ends, or go on after them; closed legs still bring ids.
    """
    min_tokens = min(min_tokens, limit)
    terms = replace(
        TERMS,
        plan=plan,
        relay_allowed=relay_allowed or plan.relays_first,
        min_tokens=min_tokens,
        terminators=frozenset({EOS}),
        limit_tokens=limit,
        splittable=splittable or plan.fused,
        classic=not (splittable or plan.fused),
        max_attempts=20,
        leaves_prefill=lambda: data.draw(st.integers(0, 5)) == 0,
        decide=lambda handoff: choose_step(handoff, load, None, rules),
    )
    world = World(terms, lambda n: data.draw(st.integers(0, n - 1)), trouble, eos_at)
    for _ in range(2000):
        if world.over or not world.step():
            break
    expected = unsplit(limit, eos_at, min_tokens)
    if world.end is None:
        assert world.failed is not None and (not terms.splittable or world.was_refused)
        assert world.emitted == expected[: len(world.emitted)]
    else:
        assert world.emitted == expected == world.splice.log
        assert world.end.reason == ("stop" if expected[-1] == EOS else "length")
    if not terms.relay_allowed:
        assert all(start.kind is not LegKind.RELAY for start in world.started.values())
    assert not world.running
    assert sorted(world.ended_legs) == sorted(world.started)


@settings(max_examples=150, deadline=None)
@given(data=st.data(), plan=PLANS, steps=st.integers(0, 30), trouble=st.integers(0, 3))
def test_client_may_leave_or_stop_at_any_time(
    data: st.DataObject,
    plan: Plan,
    steps: int,
    trouble: int,
) -> None:
    """After the client is gone, or a stop string matched, nothing is emitted and nothing runs."""
    warming = replace(TERMS, decide=lambda handoff: choose_step(handoff, 0.0, None, HandoffRules(threshold_tokens=2)))
    world = World(replace(warming, plan=plan), lambda n: data.draw(st.integers(0, n - 1)), trouble)
    for _ in range(steps):
        if world.over or not world.step():
            break
    if world.emitted and not world.over and data.draw(st.booleans()):
        world.match(data.draw(st.integers(1, len(world.emitted))))
        assert world.end is not None and world.end.reason == "stop" and not world.end.terminator
    else:
        world.leave()
    assert not world.running
    assert world.emitted == unsplit(100, None)[: len(world.emitted)]


DONE = (*EAGER, tokens(A, 4, EOS, finish="stop"))


@pytest.mark.parametrize(
    "event",
    [
        KvReady(),
        KvFailed(),
        KvUnseen(),
        KvLate(),
        StopMatched(2),
        LegEnded(A),
        LegFailed(A),
        LegUnplaced(A),
        tokens(A, 4, 5),
    ],
    ids=lambda event: type(event).__name__,
)
def test_what_comes_after_the_end_changes_nothing(event: Event) -> None:
    """Once the answer has ended, late news of legs, KV and stop strings are taken and lead to nothing."""
    splice = begun(TERMS, *DONE)
    assert splice.feed(event) == []
    assert splice.phase is Phase.DONE and splice.log == [10, 11, 12, 13, EOS]


def test_a_retry_that_is_due_after_the_end_leads_to_nothing() -> None:
    """A back-off that outlives the answer opens no new transfer."""
    splice = begun(TERMS, *EAGER, KvFailed(), tokens(A, 4, EOS, finish="stop"))
    assert splice.feed(RetryDue()) == []


def test_a_finish_may_come_without_ids() -> None:
    """SPL-22, SPL-39: a leg that ends at once, with no id, ends the answer and shows nothing."""
    actions = begun(replace(TERMS, decide=at_once), *EAGER, KvReady()).feed(tokens(B, 4, finish="stop"))
    assert actions == [CloseLeg(B), End("stop", terminator=False, align=False)]
