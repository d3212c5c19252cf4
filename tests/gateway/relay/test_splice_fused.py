"""The splice with a P that writes on in RLD's place."""

from dataclasses import replace

import pytest

from gateway.relay.splice import Splice
from gateway.relay.splice_events import (
    CloseLeg,
    End,
    Event,
    KvReady,
    KvState,
    LegEnded,
    LegFailed,
    LegKind,
    LegUnplaced,
    Phase,
    RetryLater,
    StartLeg,
    StartTransfer,
)
from policies.handoff import Handoff, HandoffStep, choose_step
from policies.rules import HandoffRules
from tests.gateway.relay.simulate import EOS
from tests.gateway.relay.test_splice import FUSED, LONE, TERMS, A, B, P, begun, said, tokens


def one_shot(handoff: Handoff) -> HandoffStep:
    """By the real policy."""
    return choose_step(handoff, 0.0, None, HandoffRules(mode="one_shot"))


ON_TERMS = replace(TERMS, plan=FUSED)
WRITING = (tokens(P, 0, 10), tokens(P, 1, 11, 12, 13))


def test_fused_p_has_the_whole_answer_to_make() -> None:
    """P's leg gets the client's limits as they are, and the KV moves at once, as with any relay."""
    terms = replace(ON_TERMS, limit_tokens=50, min_tokens=20)
    assert Splice(terms).start() == [StartLeg(P, LegKind.PREFILL, 0, 50, 20, False), StartTransfer()]


def test_fused_p_writes_on_after_its_token() -> None:
    """No relay leg is started: P's further tokens are shown as RLD's would be, while its KV moves."""
    splice = begun(ON_TERMS)
    assert splice.feed(WRITING[0]) == [said(0, 10)] and splice.phase is Phase.EAGER
    assert splice.feed(WRITING[1]) == [said(1, 11, 12, 13)]
    assert splice.kv_priority == "relay"


def test_main_takes_over_from_a_fused_p() -> None:
    """The hand-off is that of any relay: MD extends while P writes on, and P is stopped for the final."""
    splice = begun(ON_TERMS, *WRITING)
    assert splice.feed(KvReady()) == [StartLeg(A, LegKind.EXTEND, 4, 1, 0, True)]
    assert splice.feed(tokens(P, 4, 14)) == [said(4, 14)]
    splice.feed(tokens(A, 4, 14, finish="length"))
    assert splice.feed(LegEnded(A)) == [CloseLeg(P), StartLeg(B, LegKind.FINAL, 5, 95, 0, True)]
    assert splice.feed(tokens(P, 5, 15)) == [] and splice.feed(tokens(B, 5, 15)) == [said(5, 15)]


def test_kv_that_is_there_before_ps_token_is_used_at_once() -> None:
    """All KV was there, or crossed with the prefill: MD is warmed from P's first token on."""
    splice = begun(replace(ON_TERMS, decide=one_shot), KvReady())
    assert splice.feed(WRITING[0]) == [said(0, 10), StartLeg(A, LegKind.EXTEND, 1, 1, 0, True)]


def test_fused_p_may_end_the_answer() -> None:
    """As with RLD, the answer is complete and MD is brought into line."""
    actions = begun(ON_TERMS, *WRITING).feed(tokens(P, 4, EOS, finish="stop"))
    assert actions == [said(4, EOS), CloseLeg(P), End("stop", terminator=True, align=True)]
    short = begun(replace(ON_TERMS, limit_tokens=5), *WRITING).feed(tokens(P, 4, 14, finish="length"))
    assert short[-1] == End("length", terminator=False, align=True)


@pytest.mark.parametrize("event", [LegFailed(P), LegEnded(P)], ids=["failed", "ended_without_a_reason"])
def test_a_lost_fused_p_is_replaced_by_rld(event: Event) -> None:
    """RLD goes on from the ids that P gave, while the KV moves on."""
    splice = begun(ON_TERMS, *WRITING)
    assert splice.feed(event) == [StartLeg(A, LegKind.RELAY, 4, 96, 0, True)]
    assert splice.feed(tokens(A, 4, 14)) == [said(4, 14)]


def test_a_lost_fused_p_is_replaced_by_another_before_its_token() -> None:
    """The next P is to make the whole answer, too."""
    assert begun(ON_TERMS).feed(LegFailed(P)) == [StartLeg(A, LegKind.PREFILL, 0, 100, 0, False)]


def test_a_lost_fused_p_is_replaced_by_main_when_the_kv_is_there() -> None:
    """P dies during the catch-up: the final goes to MD at once."""
    splice = begun(ON_TERMS, *WRITING, KvReady())
    assert splice.feed(LegFailed(P)) == [CloseLeg(A), StartLeg(B, LegKind.FINAL, 4, 96, 0, True)]


def test_without_any_rld_a_lost_fused_p_is_waited_for_by_main() -> None:
    """Nobody can go on: the client waits for the KV, and then MD does."""
    splice = begun(replace(ON_TERMS, plan=LONE), *WRITING, LegFailed(P))
    assert splice.feed(LegUnplaced(A)) == [RetryLater(2)] and splice.phase is Phase.WAIT
    assert splice.feed(KvReady()) == [StartLeg(B, LegKind.FINAL, 4, 96, 0, True)]


def test_a_busy_p_is_left_to_rld() -> None:
    """P has no room any more: it is stopped, and RLD goes on from the same ids; the KV moves on."""
    busy = False
    splice = begun(replace(ON_TERMS, leaves_prefill=lambda: busy), *WRITING)
    busy = True
    assert splice.feed(tokens(P, 4, 14)) == [said(4, 14), CloseLeg(P), StartLeg(A, LegKind.RELAY, 5, 95, 0, True)]
    assert splice.feed(tokens(A, 5, 15)) == [said(5, 15)]
    assert splice.kv is KvState.MOVING


def test_a_busy_p_is_not_left_while_main_catches_up() -> None:
    """The hand-off is as good as over: to bring an RLD in would only delay it."""
    splice = begun(replace(ON_TERMS, decide=one_shot, leaves_prefill=lambda: True), KvReady(), WRITING[0])
    assert splice.phase is Phase.CATCH_UP
    assert splice.feed(tokens(P, 1, 11)) == [said(1, 11)]
