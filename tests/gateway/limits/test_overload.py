"""What a process can carry is learnt from its event loop."""

import math

from gateway.limits.overload import LATE_TICKS, LEAST, LoadGuard


def busy(running: int) -> LoadGuard:
    """A process with so many requests."""
    guard = LoadGuard()
    for _ in range(running):
        guard.enter()
    return guard


def tick(guard: LoadGuard, times: int, late_s: float, busy_share: float = 1.0) -> None:
    """Look at the loop so often."""
    for _ in range(times):
        guard.note(late_s, busy_share)


def test_a_loop_that_is_late_on_end_shows_the_bound() -> None:
    """The bound is below what runs then, each overload lowers it, and nobody is let in until enough have ended."""
    guard = busy(200)
    tick(guard, LATE_TICKS - 1, 0.05)
    assert (guard.has_room, guard.most) == (True, math.inf)
    tick(guard, 1, 0.05)
    assert (guard.has_room, guard.most) == (False, 180)
    tick(guard, LATE_TICKS, 0.05)
    assert guard.most == 162
    for _ in range(39):
        guard.leave()
    assert (guard.has_room, guard.running) == (True, 161)


def test_single_stalls_and_a_busy_machine_are_no_overload() -> None:
    """One long turn, or lateness for want of a processor, changes nothing."""
    guard = busy(200)
    for _ in range(50):
        tick(guard, LATE_TICKS - 1, 2.0)
        tick(guard, 1, 0.001)
    tick(guard, 500, 0.5, busy_share=0.5)
    assert guard.most == math.inf


def test_the_bound_grows_while_it_is_tried() -> None:
    """A loop that is on time lets the bound grow, but not far beyond what runs; a few requests may always run."""
    guard = busy(100)
    tick(guard, LATE_TICKS, 0.05)
    tick(guard, 10, 0.001)
    assert guard.most == 100
    tick(guard, 10_000, 0.001)
    assert 200 < guard.most < 220
    for _ in range(100):
        guard.leave()
    tick(guard, 100 * LATE_TICKS, 0.5)
    assert guard.most == LEAST
