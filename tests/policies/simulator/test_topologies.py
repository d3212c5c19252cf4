"""Fleets of the four topologies: their cost, their regions, and how a budget is divided."""

import pytest

from policies.simulator.closed_form import Workload
from policies.simulator.topologies import (
    TOPOLOGIES,
    FleetCounts,
    FleetKind,
    build_fleet,
    estimate_rate,
    size_fleet,
    topology_rules,
)
from policies.types import Role
from tests.policies.simulator.parts import LINE, PARTS, RULES

LOAD = Workload(prompt_tokens=60_000, uncached_tokens=6_000, missing_tokens=6_000, output_tokens=1_000, itl_s=0.02)


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_a_budget_is_kept_and_used(topology: FleetKind) -> None:
    """The fleet costs no more than the budget and nearly as much, and can serve something."""
    counts = size_fleet(topology, PARTS, LOAD, 20.0)
    fleet = build_fleet(topology, PARTS, counts)
    assert 18.0 < fleet.cost <= 20.0
    assert estimate_rate(topology, PARTS, LOAD, counts) > 0
    assert counts.as_dict() == {role.value: sum(one.role is role for one in fleet.members) for role in Role}


def test_what_topologies_differ_in() -> None:
    """One region has no line and no RLD; the naive way moves all KV, and shows nothing before it has crossed."""
    fleets = {name: build_fleet(name, PARTS, FleetCounts(2, 1 if name == "pdd" else 0, 2)) for name in TOPOLOGIES}
    assert {name: len(fleet.lines) for name, fleet in fleets.items()} == {
        "same-dc-homogeneous": 0,
        "same-dc-heterogeneous": 0,
        "naive-cross-dc": 1,
        "pdd": 1,
    }
    assert [name for name, fleet in fleets.items() if not fleet.delta_only] == ["naive-cross-dc"]
    assert fleets["same-dc-homogeneous"].cost == 4.0
    assert fleets["same-dc-heterogeneous"].cost == 4.5
    assert fleets["pdd"].cost == 5.5 + LINE.cost
    assert topology_rules("naive-cross-dc", RULES).direct_classic
    assert topology_rules("same-dc-homogeneous", RULES).pipelines == ("direct",)
    assert topology_rules("pdd", RULES) is RULES
