"""What operators are told of failures."""

from backends.errors import EngineUnavailable
from gateway.errors import reason_of


def test_a_time_out_has_a_reason() -> None:
    """A failure is told in its own words; a time-out, which has none, in ours."""
    assert reason_of(EngineUnavailable("away")) == "away"
    assert reason_of(TimeoutError()) == "no answer in time"
