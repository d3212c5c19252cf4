"""The reported figures beside ours, each of our ideas on and off, and what each figure depends on."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

import msgspec

from gateway.planning.scenario import Scenario
from gateway.planning.workers import RateSearch, Workers
from policies.rules import Rules
from policies.simulator.cases import CaseResult, SimulationCase
from policies.simulator.closed_form import closed_form
from policies.simulator.fleet import Fleet, Member
from policies.simulator.report import Report
from policies.simulator.topologies import (
    FAR,
    FleetKind,
    build_fleet,
    estimate_rate,
    size_fleet,
    topology_rules,
    wan_bytes,
)
from policies.types import Role

REPORTED: Mapping[str, tuple[float, str]] = {
    "ttft_p50_same_dc_s": (4.2, "TTFT P50, one region"),
    "ttft_p50_naive_s": (6.7, "TTFT P50, naive over two regions"),
    "ttft_p90_naive_s": (18.3, "TTFT P90, naive"),
    "ttft_p99_naive_s": (29.7, "TTFT P99, naive"),
    "ttft_change": (-0.515, "mean TTFT of PDD against two regions without it"),
    "rate_gain": (0.278, "requests/s within the promises, against one region"),
    "cost_change_low": (-0.071, "cost, B at 1.2 A"),
    "cost_change_high": (-0.035, "cost, B at 1.3 A"),
    "bcr_gain": (0.375, "benefit by cost, at most"),
    "rld_token_share": (0.062, "share of output tokens by RLD"),
    "wan_bytes_ratio": (10.0, "WAN bytes, without and with MD's cache"),
    "singular_share": (0.035, "singular requests (3 to 4 %)"),
}
"""Each figure as the report gives it."""
MISS = 0.2
"""A larger deviation is explained by what decides the figure."""
LOW_PRICE, HIGH_PRICE = 1.2, 1.3


@dataclass(frozen=True, slots=True)
class ServedRates:
    """Requests in a second within the promises."""

    same: float
    pdd: float


def closed_rates(scenario: Scenario) -> ServedRates:
    """Estimate both fleets' rates."""
    parts, load = scenario.parts(), scenario.workload(scenario.traffic)
    baseline = size_fleet("same-dc-homogeneous", parts, load, scenario.budget)
    return ServedRates(
        estimate_rate("same-dc-homogeneous", parts, load, baseline),
        estimate_rate("pdd", parts, load, scenario.counts),
    )


def make_cases(scenario: Scenario, rates: ServedRates, line_load: float) -> dict[str, SimulationCase]:
    """The four runs that the latencies are read from.

    ``same``, ``cross`` (MD's cache, but no relay) and ``pdd`` run at ``utilisation`` of what they serve; the line of
    the last two is as wide as gives it the stated load. ``naive`` has the scenario's line, at a rate that loads it so.
    """
    parts, traffic, rules = scenario.parts(), scenario.traffic, scenario.rules
    load = scenario.workload(traffic)
    baseline = size_fleet("same-dc-homogeneous", parts, load, scenario.budget)
    rate = scenario.utilisation * rates.pdd
    line = replace(parts.line, rate_bytes_per_s=rate * wan_bytes("pdd", parts, load) / line_load)
    loaded = replace(parts, line=line)
    naive_rate = min(rate, line_load * parts.line.rate_bytes_per_s / wan_bytes("naive-cross-dc", parts, load))

    def make(name: str, kind: FleetKind, fleet: Fleet, rate_per_s: float) -> SimulationCase:
        return SimulationCase(
            name, fleet, topology_rules(kind, rules), traffic, rate_per_s, scenario.seed, scenario.itl_s
        )

    pdd = build_fleet("pdd", loaded, scenario.counts)
    same = build_fleet("same-dc-homogeneous", parts, baseline)
    naive = build_fleet("naive-cross-dc", parts, scenario.counts)
    return {
        "same": make("same", "same-dc-homogeneous", same, scenario.utilisation * rates.same),
        "naive": make("naive", "naive-cross-dc", naive, naive_rate),
        "cross": make("cross", "naive-cross-dc", pdd, rate),
        "pdd": make("pdd", "pdd", pdd, rate),
    }


def read_figures(scenario: Scenario, rates: ServedRates, found: Mapping[str, CaseResult]) -> dict[str, float]:
    """Read the reported figures off our runs."""
    same, naive, cross, pdd = (found[name].report for name in ("same", "naive", "cross", "pdd"))

    def cost(price_b: float) -> float:
        parts = msgspec.structs.replace(scenario, price_b=price_b).parts()
        return build_fleet("pdd", parts, scenario.counts).cost / scenario.budget - 1

    gain = rates.pdd / rates.same - 1
    return {
        "ttft_p50_same_dc_s": same.ttft.p50_s,
        "ttft_p50_naive_s": naive.ttft.p50_s,
        "ttft_p90_naive_s": naive.ttft.p90_s,
        "ttft_p99_naive_s": naive.ttft.p99_s,
        "ttft_change": pdd.ttft.mean_s / cross.ttft.mean_s - 1,
        "rate_gain": gain,
        "cost_change_low": cost(LOW_PRICE),
        "cost_change_high": cost(HIGH_PRICE),
        "bcr_gain": (1 + gain) / (1 + cost(LOW_PRICE)) - 1,
        "rld_token_share": pdd.token_share["RLD"],
        "wan_bytes_ratio": naive.wan_bytes / naive.requests / (pdd.wan_bytes / pdd.requests),
        "singular_share": pdd.singular,
    }


# Each idea on and off

CaseChange = Callable[[SimulationCase], SimulationCase]


def _keep(case: SimulationCase) -> SimulationCase:
    return case


def _fleet(**changes: Any) -> CaseChange:
    return lambda case: replace(case, fleet=replace(case.fleet, **changes))


def _rules(change: Callable[[Rules], Rules]) -> CaseChange:
    return lambda case: replace(case, rules=change(case.rules))


def _section(name: str, **changes: Any) -> CaseChange:
    return _rules(
        lambda rules: msgspec.structs.replace(rules, **{name: msgspec.structs.replace(getattr(rules, name), **changes)})
    )


def _without_valleys(rules: Rules) -> Rules:
    prefill = msgspec.structs.replace(rules.placement.prefill, prefill=0.0)
    return msgspec.structs.replace(rules, placement=msgspec.structs.replace(rules.placement, prefill=prefill))


def _two_regions(case: SimulationCase) -> SimulationCase:
    """Half of MD in a third region, behind a line of its own; together the lines carry and cost as much as the one."""
    (line,) = case.fleet.lines
    half = replace(line, rate_bytes_per_s=line.rate_bytes_per_s / 2, cost=line.cost / 2)
    mains = [member for member in case.fleet.members if member.role is Role.MD]
    moved = {member.id for member in mains[::2]}

    def place(member: Member) -> Member:
        return replace(member, region="c") if member.id in moved else member

    fleet = case.fleet
    store = fleet.stores[FAR] // 2
    fleet = replace(
        fleet,
        members=tuple(map(place, fleet.members)),
        lines=(half, replace(half, dest="c")),
        stores={**fleet.stores, FAR: store, "c": store},
    )
    return replace(case, fleet=fleet)


IDEAS: Mapping[str, tuple[str, CaseChange, CaseChange]] = {
    "relay": (
        "RLD writes while the KV crosses",
        _keep,
        _rules(lambda rules: msgspec.structs.replace(rules, pipelines=("direct",))),
    ),
    "first_token_at_once": ("P's token is shown at once", _keep, _fleet(shows_first=False)),
    "transfer_from_first_chunk": ("KV crosses while P computes", _keep, _fleet(overlap="none")),
    "delta_only": ("only what MD lacks crosses", _keep, _fleet(delta_only=False)),
    "valley_aware_placement": ("P is chosen by its prefill curve", _keep, _rules(_without_valleys)),
    "alignment_guard": ("nothing singular while MD is behind P", _keep, _section("alignment", bound=1.0)),
    "catch_up": ("MD follows in rounds, not at once", _keep, _section("handoff", mode="one_shot")),
    "singular_filter": ("short cold answers end at RLD", _keep, _section("singular", enabled=False)),
    "compressed_kv": ("KV is halved on the line", _fleet(wire_share=0.5), _keep),
    "two_md_regions": ("MD in two regions", _two_regions, _keep),
}
"""What it is, and how a case is made with it and without it."""


def read_idea(found: Mapping[str, CaseResult]) -> dict[str, Any]:
    """What an idea is judged by: with it, and under ``off`` without it."""

    def summarise(report: Report) -> dict[str, float]:
        return {
            "bcr": report.bcr,
            "ttft_p50_s": report.ttft.p50_s,
            "ttft_p99_s": report.ttft.p99_s,
            "gap_p99_s": report.gap.p99_s,
        }

    return {**summarise(found["on"].report), "off": summarise(found["off"].report)}


def make_idea_cases(scenario: Scenario, rates: ServedRates) -> dict[str, dict[str, SimulationCase]]:
    """Each idea on and off, all at one rate: the highest that the fleet serves, over a line with the stated load."""
    edge = msgspec.structs.replace(scenario, utilisation=1.0)
    case = replace(make_cases(edge, rates, scenario.line_load)["pdd"], traffic=scenario.longer_traffic)
    return {name: {"on": on(case), "off": off(case)} for name, (_, on, off) in IDEAS.items()}


# One at a time

VARIATIONS: Sequence[tuple[str, dict[str, Any]]] = (
    ("model: DeepSeek-V3.2", {"model": "deepseek-v3.2"}),
    ("model: MiniMax-M2", {"model": "minimax-m2"}),
    ("chips: 910B and H20", {"chip_a": "910B", "chip_b": "H20"}),
    ("chips: H800 and H200", {"chip_a": "H800", "chip_b": "H200"}),
    ("share of peak compute: 0.6", {"mfu": 0.6}),
    ("share of peak bandwidth: 0.8", {"mbu": 0.8}),
    ("no speculation", {"tokens_per_step": 1.0}),
    ("answers of 2,000 tokens", {"output_tokens": 2000, "total_s": 60}),
    ("answers of none to 2,000 tokens", {"output_spread": 1.0}),
    ("low hits 20 % of requests, not 15 %", {"hits": ((0.0, 0.9, 0.20), (0.9, 0.95, 0.05), (0.95, 1.0, 0.75))}),
    ("no shorter hits than 50 %", {"hits": ((0.5, 0.9, 0.15), (0.9, 0.95, 0.10), (0.95, 1.0, 0.75))}),
    ("fleets at 97 % of what they serve", {"utilisation": 0.97}),
    ("line load 85 %", {"line_load": 0.85}),
    ("line load 102 %", {"line_load": 1.02}),
    ("line of 50 Gbit/s", {"line_gbit": 50}),
    ("P is one instance fewer", {"pdd": {"p": 9, "rld": 7, "md": 32}}),
    ("P of one chip each", {"prefill_chips": 1, "pdd": {"p": 40, "rld": 3, "md": 32}}),
    ("every answer is relayed", {"direct_wan_bound_s": 0.0}),
    ("cold prompts have answers of 250 tokens", {"cold_output_tokens": 250}),
)
"""Assumptions of the scenario, each changed alone."""
NO_CACHE = "compared with two regions that keep nothing at MD"


@dataclass(frozen=True, slots=True)
class Variant:
    """The scenario with one assumption changed; the fleets' rates follow the closed form's."""

    scenario: Scenario
    rates: ServedRates

    @property
    def cases(self) -> dict[str, SimulationCase]:
        """Its runs."""
        return make_cases(self.scenario, self.rates, self.scenario.line_load)


def make_variants(scenario: Scenario, rates: ServedRates) -> dict[str, Variant]:
    """Change each assumption alone."""
    base, built = closed_rates(scenario), msgspec.to_builtins(scenario)
    variants = {}
    for name, changes in VARIATIONS:
        one = msgspec.convert({**built, **changes}, Scenario)
        closed = closed_rates(one)
        served = ServedRates(rates.same * closed.same / base.same, rates.pdd * closed.pdd / base.pdd)
        variants[name] = Variant(one, served)
    return variants


def explain_miss(name: str, ours: float, sensitivity: Mapping[str, Mapping[str, float]]) -> str:
    """Return the assumption that brings a figure nearest to the reported one."""
    paper = REPORTED[name][0]
    best = min(sensitivity, key=lambda variation: abs(sensitivity[variation][name] - paper))
    value = sensitivity[best][name]
    if abs(value - paper) >= abs(ours - paper):
        return "none of the assumptions below brings it nearer"
    return f"{best}: {value:.3g}"


def compare(
    repeated: Sequence[Mapping[str, float]], sensitivity: Mapping[str, Mapping[str, float]]
) -> dict[str, dict[str, Any]]:
    """Put our figures, means over the seeds, beside the reported ones; what decides a figure is told where it misses.

    ``spread``: half of what lies between the seeds' lowest and highest figure.
    """
    table: dict[str, dict[str, Any]] = {}
    for name, (paper, _) in REPORTED.items():
        seen = [figures[name] for figures in repeated]
        ours = fmean(seen)
        deviation = (ours - paper) / abs(paper)
        table[name] = {"paper": paper, "ours": ours, "deviation": deviation, "spread": (max(seen) - min(seen)) / 2}
        if abs(deviation) > MISS:
            table[name]["decided_by"] = explain_miss(name, ours, sensitivity)
    return table


@dataclass(frozen=True, slots=True)
class PaperStudy:
    """All of it, as it is written to JSON, and the runs behind it."""

    tables: dict[str, Any]
    results: Mapping[str, CaseResult]
    """At the stated line load."""


def study_paper(scenario: Scenario, workers: Workers) -> PaperStudy:
    """Run the whole scenario. Raises BadSettings."""
    closed = closed_rates(scenario)
    rates = search_rates(scenario, closed, workers)
    loads = {f"{load:.0%}": make_cases(scenario, rates, load) for load in scenario.line_loads}
    seeds = [msgspec.structs.replace(scenario, seed=scenario.seed + more) for more in range(scenario.repeats)]
    stated = [make_cases(one, rates, scenario.line_load) for one in seeds]
    variants, ideas = make_variants(scenario, rates), make_idea_cases(scenario, rates)
    groups = [*loads.values(), *stated, *(one.cases for one in variants.values()), *ideas.values()]
    found = iter(workers.simulate_groups("step 2 of 2: simulations", groups))

    by_load = {load: read_figures(scenario, rates, next(found)) for load in loads}
    runs = [next(found) for _ in stated]
    repeated = [read_figures(scenario, rates, run) for run in runs]
    sensitivity = {name: read_figures(one.scenario, one.rates, next(found)) for name, one in variants.items()}
    naive_s = runs[0]["naive"].report.ttft.mean_s
    sensitivity[NO_CACHE] = {**repeated[0], "ttft_change": runs[0]["pdd"].report.ttft.mean_s / naive_s - 1}
    ablation = {name: read_idea(next(found)) for name in ideas}
    form = closed_form(scenario.parts().pair, scenario.workload(scenario.traffic), scenario.utilisation * rates.pdd)
    tables = {
        "scenario": msgspec.to_builtins(scenario),
        "rates": {**asdict(rates), "closed_form": asdict(closed)},
        "closed_form": {**asdict(form), "gain": form.gain},
        "paper": compare(repeated, sensitivity),
        "line_loads": by_load,
        "ablation": ablation,
        "sensitivity": {"as stated": repeated[0], **sensitivity},
    }
    return PaperStudy(tables, runs[0])


def search_rates(scenario: Scenario, closed: ServedRates, workers: Workers) -> ServedRates:
    """Find what both fleets serve, beginning at what the closed form says."""
    parts, traffic, rules = scenario.parts(), scenario.traffic, scenario.rules
    baseline = size_fleet("same-dc-homogeneous", parts, scenario.workload(traffic), scenario.budget)
    fleets: tuple[tuple[FleetKind, Fleet, float], ...] = (
        ("same-dc-homogeneous", build_fleet("same-dc-homogeneous", parts, baseline), closed.same),
        ("pdd", build_fleet("pdd", parts, scenario.counts), closed.pdd),
    )
    cases = [
        SimulationCase(kind, fleet, topology_rules(kind, rules), traffic, rate, scenario.seed, scenario.itl_s)
        for kind, fleet, rate in fleets
    ]
    searches = [RateSearch(case, scenario.good_share, scenario.search_s) for case in cases]
    return ServedRates(*workers.find_rates("step 1 of 2: what the fleets serve", searches))
