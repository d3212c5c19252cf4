"""When tokens are given out around the joint."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.relay.pacing import Pacer

ITL_S = 0.01


def test_nothing_is_held_back_outside_of_a_hand_off() -> None:
    """A steady stream goes out as it comes."""
    pacer = Pacer(reserve_s=0.08)
    for number in range(50):
        now_s = number * ITL_S
        assert pacer.schedule(now_s, 1, filling=False) == now_s


def test_the_reserve_bridges_the_joint() -> None:
    """While MD catches up tokens fall behind a little at a time; the gap before MD's first token shrinks by as much."""
    pacer = Pacer(reserve_s=0.08)
    due_s = [pacer.schedule(number * ITL_S, 1, filling=number >= 20) for number in range(60)]
    gaps = [later - earlier for earlier, later in pairwise(due_s)]
    assert max(gaps) < 1.31 * ITL_S
    assert 0.05 < due_s[-1] - 59 * ITL_S <= 0.08 + 1e-9
    first_of_main_s = 59 * ITL_S + 0.07
    assert pacer.schedule(first_of_main_s, 1, filling=False) - due_s[-1] < 2 * ITL_S


def test_the_reserve_is_given_up_afterwards() -> None:
    """After the joint the stream catches up with its engine again."""
    pacer = Pacer(reserve_s=0.08)
    for number in range(60):
        pacer.schedule(number * ITL_S, 1, filling=number >= 20)
    late = [pacer.schedule(number * ITL_S, 1, filling=False) - number * ITL_S for number in range(60, 160)]
    assert late[-1] == 0.0


def test_no_reserve_holds_nothing_back() -> None:
    """With a reserve of 0 every token is due at once, whatever MD does."""
    pacer = Pacer(reserve_s=0)
    for number in range(30):
        assert pacer.schedule(number * ITL_S, 1, filling=True) == number * ITL_S


@pytest.mark.parametrize(("gap_itls", "pace_itls"), [(1.0, 1.0), (2.0, 1.2), (2.9, 1.38), (3.1, 1.0), (50.0, 1.0)])
def test_the_pace_follows_the_newest_gaps_but_not_silences(gap_itls: float, pace_itls: float) -> None:
    """A gap counts for a fifth of the pace; one of three token times or more is a silence, and says nothing of it."""
    pacer = Pacer(reserve_s=1.0)
    for number in range(10):
        pacer.schedule(number * ITL_S, 1, filling=False)
    now_s = 9 * ITL_S + gap_itls * ITL_S
    assert pacer.schedule(now_s, 1, filling=False) == now_s
    held_s = pacer.schedule(now_s, 2, filling=True) - now_s
    # two tokens that came at once pull the pace down by a fifth before they are stretched
    assert held_s == pytest.approx(2 * 1.3 * 0.8 * pace_itls * ITL_S)


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(1, 20), st.booleans()), max_size=60), st.floats(0, 0.5))
def test_tokens_stay_in_order_and_within_the_reserve(arrivals: list[tuple[float, int, bool]], reserve_s: float) -> None:
    """Whatever comes when: due times never go back, none is before its arrival, none later than the reserve allows."""
    pacer = Pacer(reserve_s)
    now_s = last_s = 0.0
    for wait_s, tokens, filling in arrivals:
        now_s += wait_s
        due_s = pacer.schedule(now_s, tokens, filling=filling)
        assert due_s >= last_s
        assert now_s <= due_s <= now_s + reserve_s + 1e-9
        last_s = due_s
