"""The same traffic over fleets of equal cost: one region or two, with PDD or without."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from gateway.planning.scenario import Scenario
from gateway.planning.workers import RateSearch, Workers
from policies.rules import Rules
from policies.simulator.cases import Agents, CaseResult, Recorded, SimulationCase
from policies.simulator.closed_form import UTILISATION, needs
from policies.simulator.fleet import Fleet
from policies.simulator.topologies import (
    FleetCounts,
    FleetKind,
    build_fleet,
    estimate_rate,
    size_fleet,
    topology_rules,
)

HEADROOM = 1.2
"""What a fleet is made larger by than its traffic needs on average, so that peaks can be served."""


@dataclass(frozen=True, slots=True)
class Contender:
    """One fleet that is compared, and the rules it runs under."""

    name: str
    fleet: Fleet
    rules: Rules
    counts: Mapping[str, int]
    estimate_per_s: float
    """What the closed form says that it serves; where a search begins."""


def find_budget(scenario: Scenario, traffic: Agents | Recorded, rate_per_s: float) -> float:
    """What a fleet of A in one region costs in an hour that serves such traffic with some headroom."""
    parts, load = scenario.parts(), scenario.workload(traffic)
    need = needs(parts.near, parts.relay, load)
    cost = need.prefill_s * parts.near.cost + need.decode_s * parts.relay.cost
    least = parts.near.cost + parts.relay.cost + max(parts.relay.cost, parts.far.cost) + parts.line.cost
    return max(least, HEADROOM * rate_per_s / UTILISATION * cost)


def make_contenders(
    scenario: Scenario, traffic: Agents | Recorded, kinds: Sequence[FleetKind], budget: float, rules: Rules
) -> list[Contender]:
    """Build the topologies, each at no more than the budget, but for one instance of each role."""
    parts, load = scenario.parts(), scenario.workload(traffic)
    made = []
    for kind in kinds:
        counts: FleetCounts = size_fleet(kind, parts, load, budget)
        fleet = build_fleet(kind, parts, counts)
        estimate = estimate_rate(kind, parts, load, counts)
        made.append(Contender(kind, fleet, topology_rules(kind, rules), counts.as_dict(), estimate))
    return made


@dataclass(frozen=True, slots=True)
class Comparison:
    """What each contender came to: at the traffic's own rate, and at most."""

    contenders: Sequence[Contender]
    results: Sequence[CaseResult]
    served_per_s: Sequence[float]

    def tables(self) -> dict[str, Any]:
        """As it is written to JSON."""
        return {
            "topologies": {
                one.name: {
                    "counts": dict(one.counts),
                    **asdict(result.report),
                    "served_per_s": served,
                    "served_by_cost": served / one.fleet.cost if one.fleet.cost else 0.0,
                    "wanted": result.wanted,
                    "ttft_quantiles_s": list(result.ttft_s),
                }
                for one, result, served in zip(self.contenders, self.results, self.served_per_s, strict=True)
            }
        }


def compare_fleets(
    contenders: Sequence[Contender],
    traffic: Agents | Recorded,
    rate_per_s: float,
    scenario: Scenario,
    workers: Workers,
) -> Comparison:
    """Run every contender at the rate, and find the highest at which it keeps the promises to most requests."""
    cases = [
        SimulationCase(one.name, one.fleet, one.rules, traffic, rate_per_s, scenario.seed, scenario.itl_s)
        for one in contenders
    ]
    results = workers.simulate("traffic as it comes", cases)
    near = [
        replace(case, rate_per_s=max(0.01, 0.8 * one.estimate_per_s))
        for case, one in zip(cases, contenders, strict=True)
    ]
    searches = [RateSearch(case, scenario.good_share, scenario.search_s) for case in near]
    return Comparison(contenders, results, workers.find_rates("highest rates", searches))
