"""Tests of how many bytes the bridge has on order."""

import pytest

from backends.kv.bridge.pace import LinkPace

MIB = 1 << 20


def run_link(pace: LinkPace, rate_bytes_per_s: float, rtt_s: float, chunk_bytes: int, rounds: int) -> float:
    """Play a link on which the whole window is ordered at once, again and again; the share of its rate at the end."""
    now_s = share = 0.0
    for _ in range(rounds):
        pace.echoed(rtt_s, now_s)
        window = pace.window_bytes(chunk_bytes)
        mark = pace.ordered(now_s, window)
        elapsed_s = max(rtt_s, window / rate_bytes_per_s)
        now_s += elapsed_s
        pace.arrived(window)
        pace.settled()
        pace.delivered(mark, now_s)
        share = window / elapsed_s / rate_bytes_per_s
    return share


def one_order(pace: LinkPace, start_s: float, elapsed_s: float) -> None:
    """Order and receive one MiB on an idle link."""
    mark = pace.ordered(start_s, MIB)
    pace.arrived(MIB)
    pace.settled()
    pace.delivered(mark, start_s + elapsed_s)


def test_starts_with_two_chunks() -> None:
    """Before anything is known, one chunk arrives and one waits behind it."""
    pace = LinkPace(max_window_bytes=256 * MIB)
    assert pace.window_bytes(MIB) == 2 * MIB
    assert (pace.rate_bytes_per_s, pace.rtt_s) == (0.0, 0.0)


@pytest.mark.parametrize("rate_mbit", [20, 400, 10_000])
@pytest.mark.parametrize("rtt_s", [0.001, 0.03, 0.2])
def test_grows_until_the_link_is_full_and_then_stops(rate_mbit: float, rtt_s: float) -> None:
    """On any link the window reaches the rate, and stays within a few round trips' worth."""
    pace = LinkPace(max_window_bytes=1 << 40)
    rate = rate_mbit * 125_000
    assert run_link(pace, rate, rtt_s, MIB // 4, 40) > 0.95
    assert pace.window_bytes(MIB // 4) <= 2 * rate * (rtt_s + 0.015) * 1.01 + MIB // 2
    assert pace.rate_bytes_per_s == pytest.approx(rate, rel=0.05)


def test_is_bounded() -> None:
    """The window never exceeds its bound."""
    bounded = LinkPace(max_window_bytes=MIB)
    run_link(bounded, 1e9, 0.1, MIB // 4, 20)
    assert bounded.window_bytes(MIB // 4) == MIB


def test_orders_keep_to_a_rate_cap() -> None:
    """With a cap each order waits until those before it have had their time; without one nothing waits."""
    pace = LinkPace(max_window_bytes=256 * MIB, rate_cap_bytes_per_s=10 * MIB)
    assert pace.wait_s(1.0) == 0
    pace.ordered(1.0, MIB)
    pace.ordered(1.0, MIB)
    assert pace.wait_s(1.0) == pytest.approx(0.2)
    assert pace.wait_s(1.15) == pytest.approx(0.05)
    assert pace.wait_s(9.0) == 0
    free = LinkPace(max_window_bytes=256 * MIB)
    free.ordered(1.0, MIB)
    assert free.wait_s(1.0) == 0


def test_forgets_a_rate_that_the_link_no_longer_has() -> None:
    """A slower link is learnt once the old rate is out of memory; without new measurements the last one stays."""
    pace = LinkPace(max_window_bytes=256 * MIB)
    one_order(pace, 0.0, 0.2)
    assert pace.rate_bytes_per_s == 5 * MIB
    one_order(pace, 20.0, 0.01)
    assert pace.rate_bytes_per_s == 5 * MIB
    one_order(pace, 20.0, 1.0)
    assert pace.rate_bytes_per_s == MIB


def test_keeps_the_shortest_round_trip() -> None:
    """A round trip that a queue has lengthened does not widen the window."""
    pace = LinkPace(max_window_bytes=256 * MIB)
    for at_s, rtt_s in enumerate((0.05, 0.03, 0.4)):
        pace.echoed(rtt_s, float(at_s))
    assert pace.rtt_s == 0.03


def test_an_order_answered_at_once_teaches_nothing() -> None:
    """No time between order and arrival is no measurement."""
    pace = LinkPace(max_window_bytes=MIB)
    one_order(pace, 1.0, 0.0)
    assert pace.rate_bytes_per_s == 0.0


def test_a_burst_is_not_taken_for_the_rate() -> None:
    """Bytes that were read late and all at once do not make the link seem faster; the window may grow for a while."""
    pace = LinkPace(max_window_bytes=256 * MIB)
    pace.ordered(0.0, MIB)
    for at_s in (0.1, 0.2, 0.3, 0.4):
        late = pace.ordered(at_s - 0.001 if at_s == 0.3 else at_s - 0.1, MIB)
        pace.arrived(MIB)
        pace.delivered(late, at_s)
        pace.settled()
    assert pace.rate_bytes_per_s == pytest.approx(10 * MIB, rel=0.01)
