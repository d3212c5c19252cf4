"""What an answer's record tells of its tenant's use."""

import pytest

from backends.types import TransferProgress
from gateway.errors import GatewayError
from gateway.limits.usage import Use
from gateway.relay.record import Record
from gateway.relay.splice import Splice, SpliceTerms
from gateway.relay.splice_events import LegId, LegKind, StartLeg
from gateway.relay.types import Tokens
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.timeline import Timeline, Timelines
from policies.handoff import FinalNow
from policies.plans import Relay
from policies.rules import NO_SLO, SloRules
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
    return Record(Timelines(clock).open("r", "m"), Metrics(), PLAN, used.add, NO_SLO)


@pytest.fixture
def timeline(clock: Clock) -> Timeline:
    """The timeline of an answer with promises."""
    return Timelines(clock).open("r", "m")


@pytest.fixture
def promised(timeline: Timeline, used: Use) -> Record:
    """The record of an answer that waited a second for its place, and shall begin within 3 s and end within 10."""
    slo = SloRules(ttft_s=3.0, total_s=10.0, gap_s=4.0)
    return Record(timeline, Metrics(), PLAN, used.add, slo, 1.0)


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


@pytest.mark.parametrize(
    ("at_s", "finished_s", "met"),
    [
        ((2.0, 5.0), 9.0, True),
        ((2.1, 5.0), 9.0, False),  # the first token, the wait for a place included
        ((2.0, 6.1), 9.0, False),  # a silence
        ((2.0, 5.0), 9.1, False),  # the end
        ((2.0, 5.0, 9.0, 9.1), 6.0, False),  # the last tokens came to the client after the engines were done
        ((), 2.0, True),
        ((), 2.1, False),
    ],
)
def test_an_answer_within_its_promises_counts_as_such(
    promised: Record,
    timeline: Timeline,
    used: Use,
    splice: Splice,
    clock: Clock,
    at_s: tuple[float, ...],
    finished_s: float,
    met: bool,
) -> None:
    """First token, longest silence and end, as the client saw them, must all be in time; it is counted once."""
    for number, second in enumerate(at_s[:2]):
        clock.now_s = second
        give(promised, "P", number, 1)
    clock.now_s = finished_s
    promised.finished("stop", len(at_s), None)
    for number, second in enumerate(at_s[2:]):
        clock.now_s = second
        give(promised, "P", 2 + number, 1)
    promised.close(splice)
    promised.close(splice)
    assert (used.slo_met, used.slo_missed) == (int(met), int(not met))
    assert timeline.as_dict()["slo_met"] is met


@pytest.mark.parametrize(("status", "missed"), [(502, 1), (503, 1), (400, 0)])
def test_only_our_own_failures_miss_a_promise(
    promised: Record, used: Use, splice: Splice, status: int, missed: int
) -> None:
    """An answer that engines lost was promised and did not come; one that they refused as wrong counts as neither."""
    promised.failed(GatewayError(status, "no"), None)
    promised.close(splice)
    assert (used.slo_met, used.slo_missed) == (0, missed)


def test_an_answer_whose_client_left_counts_as_neither(
    promised: Record, timeline: Timeline, used: Use, splice: Splice, clock: Clock
) -> None:
    """Nobody knows whether it would have been in time, however late it was."""
    clock.now_s = 99.0
    give(promised, "P", 0, 1)
    promised.close(splice)
    assert (used.slo_met, used.slo_missed) == (0, 0)
    assert timeline.as_dict()["slo_met"] is None


def test_without_promises_nothing_is_counted(record: Record, used: Use, splice: Splice) -> None:
    """An answer to which nothing was promised neither keeps nor breaks it."""
    record.finished("stop", 0, None)
    record.close(splice)
    assert used == Use()
