"""The splice and an MD that has to load the KV, by the real policy of hand-offs."""

from dataclasses import replace

from gateway.relay.splice_events import (
    CloseLeg,
    KvReady,
    LegEnded,
    LegKind,
    LegUnplaced,
    RetryDue,
    StartLeg,
)
from policies.handoff import choose_step
from policies.rules import HandoffRules
from tests.gateway.relay.test_splice import EAGER, TERMS, A, B, C, D, E, begun, tokens


def test_one_shot_warms_main_before_rld_is_stopped() -> None:
    """By the real policy: an extend loads the KV and takes all that is pending, and the final has only the rest."""
    terms = replace(TERMS, decide=lambda handoff: choose_step(handoff, 0.0, None, HandoffRules(mode="one_shot")))
    splice = begun(terms, *EAGER)
    assert splice.feed(KvReady()) == [StartLeg(B, LegKind.EXTEND, 4, 1, 0, True)]
    splice.feed(tokens(A, 4, 14, 15))
    splice.feed(tokens(B, 4, 14, finish="length"))
    assert splice.feed(LegEnded(B)) == [CloseLeg(A), StartLeg(C, LegKind.FINAL, 6, 94, 0, True)]


def test_a_main_that_is_gone_after_its_warm_leg_leaves_a_cold_one() -> None:
    """Nobody can take the final: RLD goes on again, and whichever MD comes back is warmed first."""
    terms = replace(TERMS, decide=lambda handoff: choose_step(handoff, 0.0, None, HandoffRules(mode="one_shot")))
    splice = begun(terms, *EAGER, KvReady(), tokens(B, 4, 14, finish="length"), LegEnded(B))
    assert splice.feed(LegUnplaced(C))[-1] == StartLeg(D, LegKind.RELAY, 4, 96, 0, True)
    assert splice.feed(RetryDue()) == [StartLeg(E, LegKind.EXTEND, 4, 1, 0, True)]


def test_how_long_warming_took_says_nothing_of_catching_up() -> None:
    """RLD wrote more during the warm leg than MD took in it: the catch-up goes on none the less."""
    terms = replace(TERMS, decide=lambda handoff: choose_step(handoff, 0.0, None, HandoffRules(mode="catch_up")))
    splice = begun(terms, *EAGER, KvReady(), tokens(A, 4, *range(100, 140)), tokens(B, 4, 14, finish="length"))
    assert splice.feed(LegEnded(B)) == [StartLeg(C, LegKind.EXTEND, 44, 1, 0, True)]
    splice.feed(tokens(A, 44, *range(140, 180)))
    splice.feed(tokens(C, 44, 14, finish="length"))
    assert splice.feed(LegEnded(C))[-1] == StartLeg(D, LegKind.FINAL, 84, 16, 0, True)
