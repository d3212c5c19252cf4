"""How many instances each role wants."""

import pytest

from policies.balance import BUSY, PrefillWork, busy_prefills, observe_prefill, wanted_instances
from policies.types import Hit, Role
from policies.valley import PrefillCurve
from tests.policies.build import facts, instance

CURVE = PrefillCurve((0, 10_000), (0.001, 1.001))
P1 = instance("p1", Role.P, curve=CURVE)


def observe(count: int, every_s: float, uncached: int = 5_000) -> PrefillWork:
    """So many requests of half a second of prefill each, evenly."""
    work = PrefillWork()
    for number in range(count):
        work = observe_prefill(work, facts(20_000, {"p1": Hit(20_000 - uncached)}), P1, 100.0 + number * every_s)
    return work


@pytest.mark.parametrize("count", [20, 2_000])
def test_prefills_are_seconds_of_prefill_in_a_second(count: int) -> None:
    """Four requests a second of half a second each keep two Ps busy, known after seconds and after minutes."""
    busy = busy_prefills(observe(count, 0.25), 100.0 + count * 0.25)
    assert busy == pytest.approx(2.0, rel=0.15)


def test_prefills_fade_once_nothing_comes() -> None:
    """Minutes after the last request hardly any P is wanted; before the first nobody knows."""
    assert (busy_prefills(observe(400, 0.25), 700.0) or 0.0) < 0.01
    assert busy_prefills(PrefillWork(), 100.0) is None


def test_a_p_without_a_curve_says_nothing() -> None:
    """What it takes is not known; a hit that is not known counts as none."""
    bare = instance("p2", Role.P)
    assert observe_prefill(PrefillWork(), facts(20_000), bare, 1.0) == PrefillWork()
    assert observe_prefill(PrefillWork(), facts(20_000, {}), P1, 1.0).seconds == pytest.approx(2.001)


def test_writers_are_wanted_by_places_and_by_memory() -> None:
    """Whichever of places and KV memory is fuller counts, what waits and what drains included."""
    views = [
        instance("r1", Role.RLD, running=64, max_running=256),
        instance("m1", Role.MD, running=128, waiting=128, max_running=256),
        instance("m2", Role.MD, running=16, max_running=256, kv_usage=0.6, draining=True),
        P1,
    ]
    assert wanted_instances(views, None) == {Role.RLD: 0.25 / BUSY, Role.MD: 1.6 / BUSY}
    assert wanted_instances(views[:1], 2.0) == {Role.P: 2.0 / BUSY, Role.RLD: 0.25 / BUSY}
