"""Counting a leg's ids."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.engines.dialect import IdTally
from backends.errors import EngineBroken, IdsMissing


@given(st.lists(st.integers(0, 9), max_size=9), st.integers(0, 99))
def test_a_lost_id_is_noticed(pieces: list[int], made: int) -> None:
    """An engine that made more than came lost some; one that made as many, or tells of fewer, did not."""
    tally = IdTally()
    for count in pieces:
        tally.add(count)
    if made > sum(pieces):
        with pytest.raises(IdsMissing, match=f"{made} tokens were made, ids of {sum(pieces)} came"):
            tally.add(0, made)
    else:
        tally.add(0, made)


def test_an_end_needs_a_reason_and_ids() -> None:
    """[DONE] before the finish_reason, or after no id at all, is no proper end."""
    tally = IdTally()
    with pytest.raises(EngineBroken):
        tally.end()
    tally.finish()
    with pytest.raises(IdsMissing):
        tally.end()
    with pytest.raises(EngineBroken):
        tally.add(1)
    tally.add(0)
    whole = IdTally()
    whole.add(2)
    whole.finish()
    whole.end()
    assert whole.tokens == 2
