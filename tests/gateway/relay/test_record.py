"""What an answer's record tells of its tenant's use."""

import pytest

from backends.types import TransferProgress
from gateway.limits.usage import Use
from gateway.relay.record import Record
from gateway.relay.splice import Splice, SpliceTerms
from gateway.relay.splice_events import LegId, LegKind, StartLeg
from gateway.relay.types import Tokens
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.timeline import Timelines
from policies.handoff import FinalNow
from policies.plans import Relay
from tests.gateway.fleet.seams import Clock

PLAN = Relay("p1", "rld1", "md1", "wan_slow", ("a", "b"))


@pytest.fixture
def clock() -> Clock:
    """Time under control."""
    return Clock(0.0)


@pytest.fixture
def used() -> Use:
    """What was noted so far."""
    return Use()


@pytest.fixture
def record(clock: Clock, used: Use) -> Record:
    """The record of one relayed answer."""
    return Record(Timelines(clock).open("r", "m"), Metrics(), PLAN, used.add)


@pytest.fixture
def splice() -> Splice:
    """An answer that has not begun."""
    terms = SpliceTerms(
        plan=PLAN,
        splittable=True,
        classic=False,
        relay_allowed=True,
        limit_tokens=10,
        min_tokens=0,
        terminators=frozenset(),
        max_attempts=1,
        decide=lambda handoff: FinalNow("one_shot"),
    )
    return Splice(terms)


def give(record: Record, role: str, position: int, count: int) -> None:
    """Let the client have some tokens."""
    record.tokens(Tokens(position, tuple(range(count)), None, role, f"{role.lower()}1"))


def leg(number: int, kind: LegKind) -> StartLeg:
    """A leg's start."""
    return StartLeg(LegId(number), kind, 0, 1, 0, False)


def test_tokens_count_for_the_role_that_made_them(record: Record, used: Use, splice: Splice) -> None:
    """What the client got is counted by role, once, when the answer is closed."""
    give(record, "P", 0, 1)
    give(record, "RLD", 1, 4)
    give(record, "MD", 5, 3)
    record.close(splice)
    record.close(splice)
    assert used == Use(p_tokens=1, rld_tokens=4, md_tokens=3)


def test_tokens_behind_a_stop_string_do_not_count(record: Record, used: Use, splice: Splice) -> None:
    """An answer whose text ended within a chunk is not charged for the rest of the chunk."""
    give(record, "P", 0, 1)
    give(record, "RLD", 1, 4)
    record.cut(3)
    record.close(splice)
    assert used == Use(p_tokens=1, rld_tokens=2)


def test_cost_is_that_of_the_places_while_legs_ran(record: Record, used: Use, splice: Splice, clock: Clock) -> None:
    """Each leg costs its instance's price a second for as long as it ran, however it ended."""
    record.leg_started(leg(0, LegKind.PREFILL), "p1", 0.5)
    clock.now_s = 2.0
    record.leg_started(leg(1, LegKind.FINAL), "md1", 0.25)
    record.leg_ended(leg(0, LegKind.PREFILL), "p1", "ended")
    clock.now_s = 6.0
    record.leg_ended(leg(1, LegKind.FINAL), "md1", "EngineBroken")
    record.close(splice)
    assert used.cost == pytest.approx(2 * 0.5 + 4 * 0.25)


def test_bytes_are_counted_as_they_cross(record: Record, used: Use) -> None:
    """A transfer's bytes count once, also those that cross after the answer."""
    for wan_bytes in (100, 100, 250):
        record.transfer(TransferProgress("moving", 10, 1, 0, wan_bytes))
    assert used == Use(wan_bytes=250)
