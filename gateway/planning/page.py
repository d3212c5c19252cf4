"""A study as one page: plots and tables, with nothing to load from anywhere."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape
from itertools import pairwise
from typing import Any

from gateway.planning.paper import IDEAS, REPORTED
from gateway.planning.scenario import Scenario
from gateway.planning.svg import Curve, plot, rows_to_table
from gateway.planning.tables import FIGURES_HEAD, figure_rows, show
from policies.simulator.cases import CaseResult
from policies.simulator.closed_form import closed_form, needs
from policies.simulator.engine_model import EngineModel
from policies.simulator.topologies import FleetCounts, build_fleet, estimate_rate

STYLE = """
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:1120px;padding:0 1rem;color:#222;background:#fff}
h1{font-size:1.5rem}h2{font-size:1rem;margin:.2rem 0}main{display:grid;grid-template-columns:repeat(2,1fr);gap:1.5rem}
figure{margin:0}section{grid-column:1/-1;overflow-x:auto}svg{width:100%}polyline{fill:none;stroke-width:2}
.grid{fill:none;stroke:#e4e4e4}text{font-size:11px;fill:#555}.x{text-anchor:middle}.y{text-anchor:end}
ul{list-style:none;padding:0;margin:0;display:flex;flex-wrap:wrap;gap:.2rem 1rem;font-size:13px}
li::before{content:"";display:inline-block;width:1em;height:3px;margin:0 .4em .25em 0;background:var(--colour)}
p{font-size:13px;color:#555;margin:.2rem 0}table{border-collapse:collapse;font-size:13px}
td,th{border:1px solid #ddd;padding:.2rem .5rem;text-align:right;white-space:nowrap}
th,.words{text-align:left;white-space:normal}
tr:nth-child(even) td{background:#f8f8f8}th{background:#f0f0f0;font-weight:600}
@media(max-width:800px){main{grid-template-columns:1fr}}
"""


def write_page(title: str, parts: Sequence[str]) -> str:
    """Put plots and tables on a page."""
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{STYLE}</style><h1>{escape(title)}</h1><main>{''.join(parts)}</main></html>\n"
    )


def cdf(name: str, quantiles: Sequence[float]) -> Curve:
    """Quantiles, evenly from 0 to 100 %, as a curve of shares."""
    most = max(1, len(quantiles) - 1)
    return Curve(name, [(value, point / most) for point, value in enumerate(quantiles)])


RUNS = {
    "same": "one region",
    "naive": "two regions, nothing kept at MD",
    "cross": "two regions, no relay",
    "pdd": "PDD",
}
"""The four runs of the reported scenario."""


def plot_results(results: Mapping[str, CaseResult]) -> list[str]:
    """Draw what several fleets did with the same traffic."""
    samples = {name: result.samples for name, result in results.items() if len(result.samples) > 2}
    relayed = {name: seen for name, seen in samples.items() if any(sample.relay_load for sample in seen)}
    crossing = {name: seen for name, seen in samples.items() if seen[-1].wan_bytes}
    return [
        plot("Time to the first token", "s", "share", [cdf(name, one.ttft_s) for name, one in results.items()]),
        plot("Gap at the joint", "s", "share", [cdf(name, one.gap_s) for name, one in results.items()]),
        plot(
            "How far MD's hits are behind P's",
            "s",
            "share of prompts",
            [Curve(name, [(one.at_s, one.gap) for one in seen]) for name, seen in samples.items()],
        ),
        plot(
            "RLD's load",
            "s",
            "requests / places",
            [Curve(name, [(one.at_s, one.relay_load) for one in seen]) for name, seen in relayed.items()],
        ),
        plot(
            "The line",
            "s",
            "Gbit/s",
            [
                Curve(
                    name,
                    [
                        (b.at_s, (b.wan_bytes - a.wan_bytes) / (b.at_s - a.at_s) * 8e-9)
                        for a, b in pairwise(seen[:: max(1, len(seen) // 60)])
                        if b.at_s > a.at_s
                    ],
                )
                for name, seen in crossing.items()
            ],
        ),
    ]


def plot_bathtub(engine: EngineModel, prompt_tokens: int) -> str:
    """Draw what share of P's speed is left, alone and at each hit rate."""
    bare = replace(engine, step_s=0.0, weights_s=0.0, padding_tokens=0.0, budget_tokens=10**9)

    def efficiency(hit: float) -> float:
        cached = round(prompt_tokens * hit)
        new = max(1, prompt_tokens - cached)
        return bare.prefill_s(new, cached) / engine.prefill_s(new, cached)

    points = [(percent / 200, efficiency(percent / 200)) for percent in range(199)]
    note = "Time that the uncached tokens need at least, by time that they take alone, chunk by chunk."
    return plot("The bathtub: P's efficiency by hit rate", "hit", "efficiency", [Curve("P", points)], note)


def plot_ratios(scenario: Scenario) -> list[str]:
    """Draw benefit by cost against the ratio of P to MD, and against the line's rate, by the closed form."""
    parts, load = scenario.parts(), scenario.workload(scenario.traffic)
    budget = scenario.budget
    ratios: list[tuple[float, float]] = []
    for p in range(1, int(budget / parts.near.cost)):
        rld = max(1, round(0.1 * p * parts.near.cost / parts.relay.cost))
        left = budget - p * parts.near.cost - rld * parts.relay.cost - parts.line.cost
        counts = FleetCounts(p, rld, int(left / parts.far.cost))
        if counts.md >= 1:
            cost = build_fleet("pdd", parts, counts).cost
            ratios.append((p * parts.near.cost / budget, estimate_rate("pdd", parts, load, counts) / cost))
    same = needs(parts.near, parts.relay, load)
    own = 1 / (same.prefill_s * parts.near.cost + same.decode_s * parts.relay.cost)
    flat = Curve("one region, A alone", [(ratios[0][0], own), (ratios[-1][0], own)]) if ratios else Curve("", [])
    gains = []
    for gbit in (1, 2, 5, 10, 20, 30, 50, 75, 100, 150, 200, 300, 400):
        pair = replace(
            parts.pair,
            line_bytes_per_s=gbit * 125e6,
            line_cost=parts.line.cost * gbit * 125e6 / parts.line.rate_bytes_per_s,
        )
        gains.append((float(gbit), closed_form(pair, load, budget * own).gain))
    return [
        plot("Served by cost against P's share", "P by all", "requests/s by cost", [Curve("PDD", ratios), flat]),
        plot("Gain against the line's rate, its price in proportion", "Gbit/s", "gain", [Curve("PDD", gains)]),
    ]


def paper_page(scenario: Scenario, tables: Mapping[str, Any], results: Mapping[str, CaseResult]) -> str:
    """The study of the report's scenario."""
    measures = ("bcr", "ttft_p50_s", "ttft_p99_s", "gap_p99_s")
    ideas = [
        [IDEAS[name][0], *(f"{row[key]:.3f} ({row['off'][key]:.3f})" for key in measures)]
        for name, row in tables["ablation"].items()
    ]
    names = list(REPORTED)

    def by_case(table: Mapping[str, Mapping[str, float]]) -> list[list[str]]:
        return [[case, *(show(name, found[name]) for name in names)] for case, found in table.items()]

    heads = [REPORTED[name][1] for name in names]
    return write_page(
        "PDD: the reported scenario, simulated",
        [
            rows_to_table("Figures", FIGURES_HEAD, figure_rows(tables["paper"])),
            *plot_results({RUNS[name]: result for name, result in results.items()}),
            plot_bathtub(scenario.parts().near, scenario.prompt_tokens),
            *plot_ratios(scenario),
            rows_to_table("By the line's load", ["line load", *heads], by_case(tables["line_loads"])),
            rows_to_table(
                "Ideas, each on (and off)", ["idea", "served / cost", "TTFT p50 s", "TTFT p99 s", "gap p99 s"], ideas
            ),
            rows_to_table("One assumption changed at a time", ["assumption", *heads], by_case(tables["sensitivity"])),
        ],
    )


def comparison_page(scenario: Scenario, tables: Mapping[str, Any], results: Mapping[str, CaseResult]) -> str:
    """Fleets side by side."""
    rows = [
        [
            name,
            "/".join(str(count) for count in found["counts"].values()),
            *(f"{found[key]:.3g}" for key in ("cost", "good", "served_per_s", "served_by_cost")),
            *(f"{found['ttft'][key]:.2f}" for key in ("p50_s", "p90_s", "p99_s")),
            f"{found['gap']['p99_s']:.2f}",
            f"{found['wan_bytes'] / 1e9:.0f}",
        ]
        for name, found in tables["topologies"].items()
    ]
    head = ["topology", "P/RLD/MD", "cost/h", "good", "served/s", "served/cost", "TTFT p50 s", "p90 s", "p99 s"]
    return write_page(
        "The same traffic over several fleets",
        [
            rows_to_table("Fleets", [*head, "gap p99 s", "WAN GB"], rows),
            *plot_results(results),
            plot_bathtub(scenario.parts().near, scenario.prompt_tokens),
        ],
    )
