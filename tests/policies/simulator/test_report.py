"""Reports: quantiles, promises, benefit per cost."""

import pytest

from policies.rules import SloRules
from policies.simulator.flow import Outcome
from policies.simulator.report import Spread, is_good, make_report, spread
from policies.simulator.trace import Row


def outcome(first_s: float | None, end_s: float | None, gap_s: float = 0.0) -> Outcome:
    """A request that came at second 10."""
    return Outcome(Row(10.0, 100, 5, (1,)), "direct", "short_transfer", 50, 60, first_s, end_s, gap_s, 1, 1, 3)


def test_spread() -> None:
    """Quantiles are values that occurred; nothing gives zeros."""
    assert spread([]) == Spread(0.0, 0.0, 0.0, 0.0)
    assert spread([float(number) for number in range(100, 0, -1)]) == Spread(50.5, 51.0, 91.0, 100.0)
    assert spread([2.0]) == Spread(2.0, 2.0, 2.0, 2.0)


@pytest.mark.parametrize(
    ("seen", "gap_limit_s", "good"),
    [
        (outcome(15.0, 40.0), None, True),
        (outcome(15.1, 40.0), None, False),
        (outcome(15.0, 40.1), None, False),
        (outcome(None, 40.0), None, False),
        (outcome(15.0, None), None, False),
        (outcome(15.0, 40.0, gap_s=9.0), None, True),
        (outcome(15.0, 40.0, gap_s=1.0), 1.0, True),
        (outcome(15.0, 40.0, gap_s=1.1), 1.0, False),
    ],
)
def test_good_requests_keep_every_promise(seen: Outcome, gap_limit_s: float | None, good: bool) -> None:
    """A request is good within its times to first token and to the end, and within the gap where one is promised."""
    assert is_good(seen, SloRules(gap_s=gap_limit_s)) is good


def test_report_counts_up() -> None:
    """Shares, hits, rates and benefit per cost follow from the outcomes."""
    report = make_report([outcome(11.0, 20.0), outcome(19.0, 30.0)], 2, 1234.4, cost=4.0, slo=SloRules())
    assert (report.requests, report.refused, report.wan_bytes) == (2, 2, 1234)
    assert report.plans == {"direct:short_transfer": 2}
    assert report.token_share == {"P": 0.2, "RLD": 0.2, "MD": 0.6}
    assert report.main_hit == 0.5
    assert report.prefill_hit == 0.6
    assert report.duration_s == 20.0
    assert (report.good, report.good_per_s, report.bcr) == (0.25, 0.05, 0.0125)
    assert report.itl.mean_s == pytest.approx(10.0 / 4)
    assert report.ttft.mean_s == 5.0


def test_nothing_makes_an_empty_report() -> None:
    """Without requests, or with a fleet that costs nothing, no figure is a division by zero."""
    report = make_report([], 0, 0.0, cost=0.0, slo=SloRules())
    assert (report.requests, report.duration_s, report.good_per_s, report.bcr, report.main_hit) == (
        0,
        0.0,
        0.0,
        0.0,
        0.0,
    )
