"""Which fleets a plan tries."""

import pytest

from gateway.planning.plan import make_candidates
from gateway.planning.scenario import load_scenario


@pytest.mark.parametrize(("rate", "mains"), [(0.1, 1), (6.0, 4)])
def test_one_region_is_tried_around_its_need_as_pdd_is(rate: float, mains: int) -> None:
    """Else PDD would win against a fleet that is only too large: each has more and fewer MDs, and Ps."""
    scenario = load_scenario("paper", chip_a="H800", chip_b="H200")
    tried = make_candidates(scenario, scenario.traffic, rate, scenario.rules)
    for kind, chip in (("same-dc-homogeneous", "H800"), ("same-dc-homogeneous", "H200"), ("pdd", "H800+H200")):
        counts = [one.counts for one in tried if (one.kind, one.chip) == (kind, chip)]
        assert min(one.p for one in counts) == 1
        assert len({one.md for one in counts}) >= mains
        assert len({one.p for one in counts}) >= 2
    assert {one.line_gbit for one in tried if one.kind == "pdd"} == {50.0, 100.0, 200.0}
