"""Which fleets a plan tries."""

import pytest

from gateway.planning.plan import SPREAD, make_candidates
from gateway.planning.scenario import load_scenario


@pytest.mark.parametrize("rate", [1.0, 6.0])
def test_one_region_is_tried_at_several_sizes_too(rate: float) -> None:
    """Else PDD would win against a fleet that is only too large; of a few MDs one fewer is much."""
    scenario = load_scenario("paper", chip_a="H800", chip_b="H200")
    counts: dict[tuple[str, str], list[int]] = {}
    for one in make_candidates(scenario, scenario.traffic, rate, scenario.rules):
        counts.setdefault((one.kind, one.chip), []).append(one.counts.md)
    assert len(counts) == 4
    flat = counts["same-dc-homogeneous", "H800"]
    assert len(flat) >= len(SPREAD)
    assert flat == sorted(set(flat))
    if max(flat) <= 5:
        assert min(flat) == 1
