"""Hand-off steps: when MD takes over, that it does, and how long its first token is waited for."""

from dataclasses import replace
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.handoff import (
    MULTIPLE,
    Extend,
    ExtendBatch,
    FinalNow,
    Handoff,
    HandoffStep,
    choose_step,
    first_token_wait_s,
)
from policies.rules import HandoffRules, RelayRules

RULES = HandoffRules(threshold_tokens=16, batch_tokens=100, max_rounds=4, free_gap_s=0.0)


def choose(
    pending: int,
    rules: HandoffRules = RULES,
    *,
    rounds: int = 0,
    load: float = 0.0,
    speed: float | None = None,
    previous: int | None = None,
    cold: bool = False,
) -> HandoffStep:
    """The next step of a hand-off with ``pending`` tokens."""
    return choose_step(Handoff(pending, rounds, previous, cold), load, speed, rules)


def test_one_shot_hands_over_at_once() -> None:
    """One-shot sends the final whatever is pending and however idle RLD is."""
    assert choose(900, HandoffRules(mode="one_shot")) == FinalNow("one_shot")


@pytest.mark.parametrize("mode", ["auto", "one_shot", "catch_up"])
@pytest.mark.parametrize("pending", [0, 1, 500])
def test_a_cold_main_has_to_answer_first(mode: Literal["auto", "one_shot", "catch_up"], pending: int) -> None:
    """SPL-46: in every mode, and however busy RLD is, it goes on while a cold MD extends all that is pending."""
    assert choose(pending, HandoffRules(mode=mode), load=2.0, cold=True) == ExtendBatch(max(1, pending), "main_cold")


@pytest.mark.parametrize(("mode", "tokens"), [("auto", 100), ("catch_up", 100), ("one_shot", 390)])
def test_a_warm_leg_takes_what_its_mode_takes_at_once(
    mode: Literal["auto", "one_shot", "catch_up"], tokens: int
) -> None:
    """Where MD shall catch up in batches the first one is no larger, and one-shot hands everything over in it."""
    rules = HandoffRules(mode=mode, batch_tokens=100, max_rounds=4)
    assert choose(390, rules, cold=True) == ExtendBatch(tokens, "main_cold")


def test_a_warm_leg_counts_as_a_round() -> None:
    """With one round only the warm leg is that round, and takes everything."""
    rules = HandoffRules(mode="catch_up", batch_tokens=100, max_rounds=1)
    assert choose(390, rules, cold=True) == ExtendBatch(390, "main_cold")
    assert choose(390, rules, rounds=1) == FinalNow("rounds_spent")


@pytest.mark.parametrize(("load", "final"), [(0.74, False), (0.75, True), (2.0, True)])
def test_auto_frees_a_busy_relay(load: float, final: bool) -> None:
    """In auto mode a busy RLD is freed by one-shot; catch-up mode does not look at its load."""
    assert (choose(900, load=load) == FinalNow("relay_busy")) is final
    forced = HandoffRules(mode="catch_up", batch_tokens=1000)
    assert choose(900, forced, load=load) == ExtendBatch(900, "catch_up")


@pytest.mark.parametrize(("pending", "step"), [(0, FinalNow("small_rest")), (16, FinalNow("small_rest"))])
def test_a_small_rest_is_final(pending: int, step: FinalNow) -> None:
    """At the threshold or below it the final is sent."""
    assert choose(pending) == step


def test_more_than_the_threshold_is_extended() -> None:
    """One token above the threshold goes through a catch-up extend first."""
    assert choose(17) == ExtendBatch(17, "catch_up")


@pytest.mark.parametrize(("pending", "final"), [(0, True), (1, False)])
def test_threshold_zero_waits_for_nothing_pending(pending: int, final: bool) -> None:
    """POL-04: threshold 0 means that only an empty rest is final, not "always" and not "never"."""
    step = choose(pending, HandoffRules(threshold_tokens=0, free_gap_s=0.0))
    assert isinstance(step, FinalNow) is final


@pytest.mark.parametrize(("pending", "final"), [(50, True), (51, False)])
def test_a_fast_main_may_extend_more_at_the_end(pending: int, final: bool) -> None:
    """What MD extends within the free gap counts as a small rest."""
    rules = HandoffRules(threshold_tokens=16, free_gap_s=0.01)
    assert isinstance(choose(pending, rules, speed=5000.0), FinalNow) is final


def test_a_slow_main_keeps_the_threshold() -> None:
    """A slow MD does not make the threshold smaller."""
    assert choose(16, HandoffRules(threshold_tokens=16), speed=1.0) == FinalNow("small_rest")


def test_batches_grow_when_rounds_run_out() -> None:
    """A batch is as large as the rule says, or as large as needed for the rounds to suffice."""
    assert choose(300) == ExtendBatch(100, "catch_up")
    assert choose(900) == ExtendBatch(225, "catch_up")
    assert choose(900, rounds=3) == ExtendBatch(900, "catch_up")
    assert choose(900, rounds=4) == FinalNow("rounds_spent")


@pytest.mark.parametrize(("previous", "final"), [(40, True), (39, True), (41, False)])
def test_a_relay_that_outruns_main_is_stopped(previous: int, final: bool) -> None:
    """A round that does not shrink what is pending is the last."""
    step = choose(40, rounds=1, previous=previous)
    assert (step == FinalNow("relay_outruns")) is final


@given(
    rules=st.builds(
        HandoffRules,
        mode=st.sampled_from(["auto", "one_shot", "catch_up"]),
        threshold_tokens=st.integers(0, 100),
        batch_tokens=st.integers(1, 1000),
        max_rounds=st.integers(1, 20),
        free_gap_s=st.floats(0, 0.1),
    ),
    pending=st.integers(0, 100_000),
    made_per_round=st.lists(st.integers(0, 3000), min_size=21, max_size=21),
    load=st.floats(0, 2),
    speed=st.one_of(st.none(), st.floats(0, 1e6)),
)
def test_hand_off_ends(
    rules: HandoffRules, pending: int, made_per_round: list[int], load: float, speed: float | None
) -> None:
    """Whatever RLD writes during the extends, the final comes within the rounds, and no extend is empty or too long."""
    sealed, emitted, previous = 0, pending, None
    for rounds in range(rules.max_rounds + 1):
        cold = rounds == 0
        step = choose(emitted - sealed, rules, rounds=rounds, load=load, speed=speed, previous=previous, cold=cold)
        if isinstance(step, FinalNow):
            assert not cold
            return
        assert 1 <= step.tokens <= max(emitted - sealed, cold)
        previous = None if cold else emitted - sealed
        sealed = min(sealed + step.tokens, emitted)
        emitted += made_per_round[rounds]
    pytest.fail("no final within the rounds")


WAITS = RelayRules(extend_timeout_s=30, extend_floor_s=3)
SMALL = Extend(tokens=100, ahead_tokens=0, kv_bytes=0, tokens_per_s=1000.0)


def test_an_unmeasured_main_has_all_the_time() -> None:
    """Where MD's speed is not known only the limit ends the wait."""
    assert first_token_wait_s(replace(SMALL, tokens_per_s=None), WAITS) == 30


def test_little_to_do_is_waited_for_as_long_as_the_floor() -> None:
    """SPL-46: an extend of a tenth of a second is given up after the floor, not after the limit."""
    assert first_token_wait_s(SMALL, WAITS) == 3


@pytest.mark.parametrize(
    ("change", "expected_s"),
    [
        ({"tokens": 2000}, 2.0),
        ({"ahead_tokens": 1900}, 2.0),
        ({"kv_bytes": 2_000_000_000}, 2.1),
        ({"rtt_s": 1.5}, 1.6),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_whatever_takes_time_is_waited_for(change: dict[str, float], expected_s: float) -> None:
    """Tokens to compute, its own and those before it, KV to load and the way there count, each several times over."""
    assert first_token_wait_s(replace(SMALL, **change), WAITS) == pytest.approx(MULTIPLE * expected_s)  # type: ignore[arg-type]


def test_queued_and_silent_mains_get_more() -> None:
    """Each request in MD's queue adds the whole wait again, and each silence in the same answer doubles it."""
    assert first_token_wait_s(replace(SMALL, waiting=2), WAITS) == 9
    assert first_token_wait_s(replace(SMALL, silences=2), WAITS) == 12
    assert first_token_wait_s(replace(SMALL, silences=10_000), WAITS) == 30


@given(
    tokens=st.integers(0, 10**7),
    waiting=st.integers(0, 1000),
    silences=st.integers(0, 100),
    speed=st.floats(0.1, 1e6),
    limit_s=st.floats(0.01, 600),
)
def test_never_beyond_the_limit_nor_shorter_than_expected(
    tokens: int, waiting: int, silences: int, speed: float, limit_s: float
) -> None:
    """The limit holds whatever is to do; below it the wait is neither under the floor nor under what is expected."""
    rules = RelayRules(extend_timeout_s=limit_s, extend_floor_s=3)
    extend = Extend(tokens, 0, 0, speed, waiting=waiting, silences=silences)
    wait_s = first_token_wait_s(extend, rules)
    assert wait_s <= limit_s
    assert wait_s == limit_s or wait_s >= max(3.0, tokens / speed)
