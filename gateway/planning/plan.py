"""Which fleet serves some traffic at the least cost, and whether a second region pays: reckoned, then simulated."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import msgspec

from gateway.planning.compare import HEADROOM
from gateway.planning.scenario import Scenario
from gateway.planning.workers import RateSearch, Workers
from policies.rules import Rules
from policies.simulator.cases import Agents, CaseResult, Recorded, SimulationCase
from policies.simulator.closed_form import RLD_SHARE, UTILISATION, ClosedForm, Workload, closed_form, needs
from policies.simulator.topologies import (
    FleetCounts,
    FleetKind,
    FleetParts,
    build_fleet,
    estimate_rate,
    topology_rules,
)

SPREAD = (0.6, 0.8, 1.0, 1.25)
"""Numbers of MDs that are tried, by the closed form's."""
RLDS = (1, 3)
"""RLDs that are tried beside those that the closed form has."""
LINES = (0.5, 2.0)
"""Other rates of the line that are tried, by the given one; its price goes along."""
BOUNDS_S = (0.25, 0.5, 1.0)
"""Values of ``direct_wan_bound_s`` that are tried on the best fleet."""
QUICK_S, SMALL_DECODE = 0.05, 0.2
"""A crossing that nobody notices, and a share of decode that makes another chip for it pointless."""
SMALL_GAIN = 0.03
"""A gain below this is within what the model can tell."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One fleet that was tried."""

    kind: FleetKind
    chip: str
    counts: FleetCounts
    parts: FleetParts
    line_gbit: float
    rules: Rules
    served_per_s: float = 0.0

    @property
    def cost(self) -> float:
        """In an hour."""
        return build_fleet(self.kind, self.parts, self.counts).cost

    @property
    def bcr(self) -> float:
        """Requests/s within the promises, by cost."""
        return self.served_per_s / self.cost

    def case(self, traffic: Agents | Recorded, rate_per_s: float, scenario: Scenario) -> SimulationCase:
        """Its simulation."""
        fleet = build_fleet(self.kind, self.parts, self.counts)
        return SimulationCase(self.kind, fleet, self.rules, traffic, rate_per_s, scenario.seed, scenario.itl_s)

    def row(self) -> dict[str, Any]:
        """As it is written to JSON."""
        split = self.kind == "pdd"
        return {
            "topology": self.kind,
            "chips": self.chip,
            **self.counts.as_dict(),
            "line_gbit": self.line_gbit if split else 0.0,
            "cost": self.cost,
            "served_per_s": self.served_per_s,
            "served_by_cost": self.bcr,
        }


def reckon(scenario: Scenario, traffic: Agents | Recorded, rate_per_s: float) -> ClosedForm:
    """Return the closed form for the traffic, in microseconds."""
    return closed_form(scenario.parts().pair, scenario.workload(traffic), rate_per_s)


def make_candidates(scenario: Scenario, traffic: Agents | Recorded, rate_per_s: float, rules: Rules) -> list[Candidate]:
    """Fleets around what the closed form says is needed: one region of A, one of B, both in one, and PDD."""
    load, parts = scenario.workload(traffic), scenario.parts()
    swapped = msgspec.structs.replace(scenario, chip_a=scenario.chip_b, price_a=scenario.price_b).parts()
    target, names = rate_per_s * HEADROOM / UTILISATION, f"{scenario.chip_a}+{scenario.chip_b}"
    found = []
    for chip, own in ((scenario.chip_a, parts), (scenario.chip_b, swapped)):
        flat_rules = topology_rules("same-dc-homogeneous", rules)
        around = _around(_needed("same-dc-homogeneous", own, load, target))
        found += [Candidate("same-dc-homogeneous", chip, counts, own, 0.0, flat_rules) for counts in around]
    mixed = _needed("same-dc-heterogeneous", parts, load, target)
    mixed_rules = topology_rules("same-dc-heterogeneous", rules)
    found.append(Candidate("same-dc-heterogeneous", names, mixed, parts, 0.0, mixed_rules))
    base = _needed("pdd", parts, load, target)
    split = [*_around(base), *(replace(base, rld=base.rld + more) for more in RLDS)]
    found += [Candidate("pdd", names, counts, parts, scenario.line_gbit, rules) for counts in split]
    for share in LINES:
        line = replace(parts.line, rate_bytes_per_s=parts.line.rate_bytes_per_s * share, cost=parts.line.cost * share)
        wired = replace(parts, line=line)
        found.append(Candidate("pdd", names, base, wired, scenario.line_gbit * share, rules))
    return found


def _needed(kind: FleetKind, parts: FleetParts, load: Workload, target_per_s: float) -> FleetCounts:
    """Instances that serve so many requests in a second, at least one of each role."""
    need = needs(parts.near, parts.main(kind), load)
    p, md = (max(1, ceil(target_per_s * seconds)) for seconds in (need.prefill_s, need.decode_s))
    rld = max(1, round(RLD_SHARE * p * parts.near.cost / parts.relay.cost)) if kind == "pdd" else 0
    return FleetCounts(p, rld, md)


def _around(base: FleetCounts) -> list[FleetCounts]:
    """More and fewer MDs, and one P more and one fewer."""
    mains = sorted({max(1, round(base.md * part)) for part in SPREAD})
    prefills = [p for p in (base.p - 1, base.p + 1) if p]
    return [*(replace(base, md=md) for md in mains), *(replace(base, p=p) for p in prefills)]


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """What was found."""

    form: ClosedForm
    candidates: Sequence[Candidate]
    best: Candidate
    """PDD's best."""
    rival: Candidate
    """The best fleet of one kind of chip in one region."""
    rules: Mapping[str, Any]
    """A document that holds what differs from the defaults."""
    result: CaseResult
    """The best of PDD under the traffic."""
    sensitivity: Mapping[str, float]
    """Gain with one thing changed, by the closed form."""

    @property
    def gain(self) -> float:
        """Benefit by cost against the best fleet in one region, less 1."""
        return self.best.bcr / self.rival.bcr - 1 if self.rival.bcr else float("inf")

    @property
    def pays(self) -> bool:
        """Whether that is more than the model's own error."""
        return self.gain > SMALL_GAIN

    @property
    def frontier(self) -> list[Candidate]:
        """Candidates that no other one beats in both cost and what is served, cheapest first."""
        best, kept = 0.0, []
        for one in sorted(self.candidates, key=lambda one: (one.cost, -one.served_per_s)):
            if one.served_per_s > best:
                best = one.served_per_s
                kept.append(one)
        return kept


def make_plan(
    scenario: Scenario, traffic: Agents | Recorded, rate_per_s: float, rules: Rules, workers: Workers
) -> FleetPlan:
    """Search. Raises BadSettings."""
    tried = make_candidates(scenario, traffic, rate_per_s, rules)
    load = scenario.workload(traffic)
    searches = [
        RateSearch(
            one.case(traffic, max(0.01, 0.9 * estimate_rate(one.kind, one.parts, load, one.counts)), scenario),
            scenario.good_share,
            scenario.search_s,
        )
        for one in tried
    ]
    rates = workers.find_rates("fleets", searches)
    tried = [replace(one, served_per_s=rate) for one, rate in zip(tried, rates, strict=True)]
    best = max((one for one in tried if one.kind == "pdd"), key=lambda one: one.bcr)
    rival = max((one for one in tried if one.kind == "same-dc-homogeneous"), key=lambda one: one.bcr)
    best, bound_s, result = _tune(best, traffic, min(rate_per_s, best.served_per_s or rate_per_s), scenario, workers)
    document: dict[str, Any] = {"slo": {"ttft_s": scenario.ttft_s, "total_s": scenario.total_s}}
    if bound_s != rules.direct_wan_bound_s:
        document["direct_wan_bound_s"] = bound_s
    sensitivity = vary_plan(scenario, traffic, rate_per_s)
    return FleetPlan(reckon(scenario, traffic, rate_per_s), tried, best, rival, document, result, sensitivity)


def _tune(
    best: Candidate, traffic: Agents | Recorded, rate_per_s: float, scenario: Scenario, workers: Workers
) -> tuple[Candidate, float, CaseResult]:
    """Try the bound of direct: the best share of good requests, and among equals the shorter gaps."""
    variants = [
        replace(best, rules=msgspec.structs.replace(best.rules, direct_wan_bound_s=bound)) for bound in BOUNDS_S
    ]
    results = workers.simulate("rules", [one.case(traffic, rate_per_s, scenario) for one in variants])

    def worth(index: int) -> tuple[float, float]:
        report = results[index].report
        return round(report.good, 3), -report.gap.p99_s

    index = max(range(len(variants)), key=worth)
    return variants[index], BOUNDS_S[index], results[index]


def vary_plan(scenario: Scenario, traffic: Agents | Recorded, rate_per_s: float) -> dict[str, float]:
    """Return the closed form's gain with one thing changed."""

    def gain(**changes: Any) -> float:
        return reckon(msgspec.structs.replace(scenario, **changes), traffic, rate_per_s).gain

    load, parts = scenario.workload(traffic), scenario.parts()
    half = replace(load, uncached_tokens=load.uncached_tokens / 2, missing_tokens=load.missing_tokens / 2)
    return {
        "as given": gain(),
        "B a fifth cheaper": gain(price_b=scenario.price_b * 0.8),
        "B a fifth dearer": gain(price_b=scenario.price_b * 1.2),
        "line at a third of its price": gain(line_cost=scenario.line_cost / 3),
        "line three times as dear": gain(line_cost=scenario.line_cost * 3),
        "half as much uncached": closed_form(parts.pair, half, rate_per_s).gain,
        "twice the traffic": reckon(scenario, traffic, 2 * rate_per_s).gain,
        "less compute reached (MFU 0.3)": gain(mfu=0.3),
        "less bandwidth reached (MBU 0.5)": gain(mbu=0.5),
    }


def why_not(scenario: Scenario, traffic: Agents | Recorded, rate_per_s: float) -> list[str]:
    """Say what stands against PDD here, and what would have to change."""
    load, parts = scenario.workload(traffic), scenario.parts()
    form = reckon(scenario, traffic, rate_per_s)
    own, other = form.same.decode_s * parts.relay.cost, form.pdd.decode_s * parts.far.cost
    saved, line = own - other, parts.line.cost * UTILISATION / rate_per_s
    filled = form.wan_bytes * rate_per_s / parts.line.rate_bytes_per_s
    crossing_s = form.wan_bytes / parts.line.rate_bytes_per_s
    decode_share = form.same.decode_s / (form.same.decode_s + form.same.prefill_s)
    reasons = []
    if saved <= 0:
        reasons.append(
            f"to decode a request costs {other:.3g} on {scenario.chip_b} and {own:.3g} on {scenario.chip_a}: the other "
            f"chip would have to be {-saved / other:.0%} cheaper, or read its memory faster"
        )
    elif line > saved / 2:
        needed = 2 * line * rate_per_s / saved
        reasons.append(
            f"the line costs {line / saved:.0%} of what {scenario.chip_b} saves; at {needed:.2g} requests/s it would "
            "cost half of it"
        )
    if filled > UTILISATION:
        reasons.append(f"the KV of {rate_per_s:.3g} requests/s fills the line {filled:.1f} times")
    if crossing_s < QUICK_S:
        reasons.append(f"a request's KV crosses in {crossing_s * 1e3:.0f} ms: there is next to nothing for RLD to hide")
    if decode_share < SMALL_DECODE:
        reasons.append(f"decode is {decode_share:.0%} of the work: another chip for it changes little")
    if load.uncached_tokens > load.prompt_tokens / 2:
        hit = 1 - load.uncached_tokens / load.prompt_tokens
        reasons.append(f"only {hit:.0%} of the prompts' tokens are cached: most KV crosses")
    return reasons
