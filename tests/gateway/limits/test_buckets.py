"""The arithmetic of limits where one process counts alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.limits.buckets import Left, Meter, RateLimitStatus, Rates

RATES = Rates(requests_per_min=6, tokens_per_min=600, concurrent=2)


def test_a_full_bucket_comes_at_once_and_refills_by_the_minute() -> None:
    """Six requests pass at once, the seventh waits ten seconds, and is let in then."""
    meter = Meter()
    rates = Rates(requests_per_min=6)
    assert [meter.ask(rates, 0, 0, 0.0).refused_by for _ in range(6)] == [None] * 6
    refused = meter.ask(rates, 0, 0, 0.0)
    assert (refused.refused_by, refused.retry_after_s) == ("requests", 10.0)
    assert refused.status == RateLimitStatus(Left(6, 0, 60.0))
    assert meter.ask(rates, 0, 0, 10.0).refused_by is None


def test_tokens_are_reserved_and_given_back() -> None:
    """A reservation blocks others; what was not used of it lets them in."""
    meter, rates = Meter(), Rates(tokens_per_min=600)
    assert meter.ask(rates, 500, 0, 0.0).status.tokens == Left(600, 100, 50.0)
    refused = meter.ask(rates, 200, 0, 0.0)
    assert (refused.refused_by, refused.retry_after_s) == ("tokens", 10.0)
    meter.give_back(400)
    assert meter.ask(rates, 200, 0, 0.0).refused_by is None


def test_a_debt_is_paid_before_anything_passes() -> None:
    """An answer that used more than it reserved leaves a debt that time pays."""
    meter, rates = Meter(), Rates(tokens_per_min=600)
    meter.ask(rates, 600, 0, 0.0)
    meter.give_back(-600)
    refused = meter.ask(rates, 10, 0, 0.0)
    assert refused.retry_after_s == 61.0
    assert refused.status.tokens == Left(600, 0, 120.0)
    assert meter.ask(rates, 10, 0, 61.0).refused_by is None


def test_bytes_over_the_wan_are_charged_as_they_cross() -> None:
    """Whoever has bytes left may begin, whatever crosses then; a debt is paid by time, and nothing is saved up."""
    meter, rates = Meter(), Rates(wan_bytes_per_min=600)
    meter.charge_wan(10**6, 600, 0.0)
    assert meter.ask(rates, 0, 0, 0.0).refused_by is None
    meter.charge_wan(599, 600, 0.0)
    assert meter.ask(rates, 0, 0, 0.0).refused_by is None
    meter.charge_wan(1200, 600, 3600.0)
    refused = meter.ask(rates, 0, 0, 3600.0)
    assert (refused.refused_by, refused.retry_after_s) == ("wan_bytes", 60.1)
    assert refused.status == RateLimitStatus()
    assert meter.ask(rates, 0, 0, 3660.2).refused_by is None


def test_a_refusal_takes_nothing() -> None:
    """Where one limit refuses, the others are as they were."""
    meter = Meter()
    assert meter.ask(RATES, 100, 2, 0.0).refused_by == "concurrent"
    assert meter.ask(RATES, 601, 0, 0.0).refused_by == "tokens"
    assert meter.ask(RATES, 100, 1, 0.0).status == RateLimitStatus(Left(6, 5, 10.0), Left(600, 500, 10.0))


def test_the_longest_wait_is_told() -> None:
    """Where two limits refuse, the later one says when to come back."""
    meter, rates = Meter(), Rates(requests_per_min=1, tokens_per_min=600)
    meter.ask(rates, 600, 0, 0.0)
    refused = meter.ask(rates, 60, 0, 0.0)
    assert (refused.refused_by, refused.retry_after_s) == ("requests", 60.0)


def test_no_limits_hold_nothing() -> None:
    """Without limits everything passes and nothing is shown."""
    assert not Rates().any and RATES.any
    assert Meter().ask(Rates(), 10**9, 10**6, 0.0).status == RateLimitStatus()


@pytest.mark.parametrize(("processes", "requests", "concurrent"), [(1, 6, 2), (2, 3, 1), (3, 2, 1), (9, 1, 1)])
def test_share_of_one_process(processes: int, requests: int, concurrent: int) -> None:
    """TEN-08: without Redis a process keeps to its part of each limit, and to one at least."""
    own = RATES.share(processes)
    assert (own.requests_per_min, own.concurrent) == (requests, concurrent)
    assert Rates(wan_bytes_per_min=600).share(processes) == Rates(wan_bytes_per_min=600 // processes)
    assert Rates().share(3) == Rates()


def test_no_reservation_is_larger_than_the_bucket() -> None:
    """A request that may use more than a minute's tokens takes a full bucket, so that it can run at all."""
    assert (RATES.reserve(500), RATES.reserve(6000), Rates().reserve(6000)) == (500, 600, 6000)


@given(
    st.lists(st.tuples(st.floats(0, 30), st.integers(1, 600), st.integers(0, 600)), max_size=60),
    st.integers(1, 40),
)
def test_never_more_than_the_limit_and_one_burst(asks: list[tuple[float, int, int]], per_min: int) -> None:
    """Over any course, what passes is at most a bucket and what time refilled; true use beyond is paid later."""
    meter, rates = Meter(), Rates(requests_per_min=per_min, tokens_per_min=600)
    now_s, passed, used = 0.0, 0, 0
    for wait_s, reserved, true in asks:
        now_s += wait_s
        if meter.ask(rates, reserved, 0, now_s).refused_by is None:
            passed += 1
            used += min(true, reserved)
            meter.give_back(reserved - min(true, reserved))
    assert passed <= per_min + now_s * per_min / 60 + 1e-6
    assert used <= 600 + now_s * 600 / 60 + 1e-6
