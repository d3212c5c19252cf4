"""Log-probabilities as clients get them."""

import math

from hypothesis import given
from hypothesis import strategies as st

from backends.engines.dialect import LOWEST_LOGPROB, likeliest

ENTRIES = st.lists(st.tuples(st.integers(0, 99), st.none() | st.floats()))


@given(ENTRIES, st.integers(0, 9))
def test_the_likeliest_come_first_and_are_finite(entries: list[tuple[int, float | None]], count: int) -> None:
    """At most ``count`` come, in falling order, none less likely than one left out; what is no number is the lowest."""
    found = likeliest(entries, count)
    assert len(found) == min(count, len(entries))
    values = [value for _, value in found]
    assert values == sorted(values, reverse=True) and all(map(math.isfinite, values))
    every = sorted((v if v is not None and math.isfinite(v) else LOWEST_LOGPROB for _, v in entries), reverse=True)
    assert values == every[:count]
