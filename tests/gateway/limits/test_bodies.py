"""What bodies may hold: shares by what is free, all of it given back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import GatewayError
from gateway.limits.bodies import Bodies, HeldBytes

STEPS = st.lists(st.tuples(st.integers(0, 4), st.integers(1, 400)), max_size=60)


@given(STEPS)
def test_a_tenant_holds_no_more_than_is_free_and_a_newcomer_always_finds_room(steps: list[tuple[int, int]]) -> None:
    """Whatever five tenants take, a sixth gets half of the rest, and in the end nothing is held."""
    bodies, taken = Bodies(1000), list[tuple[str, int]]()
    for number, size in steps:
        if bodies.take(str(number), size):
            taken.append((str(number), size))
            mine = sum(held for name, held in taken if name == str(number))
            assert mine <= 1000 - sum(held for _, held in taken)
    share = (1000 - bodies.used_bytes) // 2
    assert share >= 1000 // 64 and bodies.take("new", share)
    taken.append(("new", share))
    for name, size in taken:
        bodies.give_back(name, size)
    assert bodies == Bodies(1000)


def test_one_alone_holds_half_and_the_next_half_of_the_rest() -> None:
    """The shares are exact."""
    bodies = Bodies(600)
    assert bodies.take("a", 300) and not bodies.take("a", 1)
    assert bodies.take("b", 150) and not bodies.take("b", 1)
    bodies.give_back("a", 100)
    assert bodies.take("b", 50) and not bodies.take("a", 1)


def test_what_never_fits_is_told_from_what_does_not_fit_now() -> None:
    """Who can come back is told so; who would never be taken is told that."""
    bodies = Bodies(100)
    first, second = HeldBytes(bodies, "a"), HeldBytes(bodies, "a")
    first.grow(30)
    with pytest.raises(GatewayError) as now:
        second.grow(30)
    with pytest.raises(GatewayError) as never:
        second.grow(51)
    assert (now.value.status, now.value.code, now.value.retry_after_s) == (429, "bodies_too_large", 1.0)
    assert (never.value.status, never.value.retry_after_s) == (413, None)
    first.release()
    first.release()
    second.release()
    assert bodies == Bodies(100)
