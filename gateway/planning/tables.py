"""Studies as tables on a terminal."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from gateway.planning.compare import Comparison
from gateway.planning.paper import IDEAS, REPORTED

WIDTH = 210
SHARES = ("change", "gain", "share")
"""Ends of the names of figures that are shown in per cent."""


def make_console() -> Console:
    """A console that cuts nothing off where its output is read by something else."""
    return Console(width=WIDTH, emoji=False, markup=False)


def show(name: str, value: float) -> str:
    """Write one figure."""
    if any(part in name.split("_") for part in SHARES):
        return f"{value:+.1%}" if "gain" in name or "change" in name else f"{value:.1%}"
    return f"{value:.2f}" + (" s" if name.endswith("_s") else "")


FIGURES_HEAD = ("figure", "reported", "ours", "±", "deviation", "decided by")


def figure_rows(paper: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """Write the reported figures beside ours."""
    return [
        [
            REPORTED[name][1],
            show(name, row["paper"]),
            show(name, row["ours"]),
            show(name, row["spread"]).lstrip("+"),
            f"{row['deviation']:+.0%}",
            row.get("decided_by", ""),
        ]
        for name, row in paper.items()
    ]


def print_paper(tables: Mapping[str, Any], console: Console) -> None:
    """Print the study of the report's scenario."""
    rates = tables["rates"]
    console.print(
        f"Served within the promises: one region {rates['same']:.1f}/s, PDD {rates['pdd']:.1f}/s "
        f"(closed form {rates['closed_form']['same']:.1f} and {rates['closed_form']['pdd']:.1f})"
    )
    table = Table(*FIGURES_HEAD, title="The report's figures and ours")
    for row in figure_rows(tables["paper"]):
        table.add_row(*row)
    console.print(table)
    loads = tables["line_loads"]
    table = Table("figure", *loads, title="By the line's load")
    for name, (_, text) in REPORTED.items():
        table.add_row(text, *(show(name, figures[name]) for figures in loads.values()))
    console.print(table)
    table = Table("idea", "", "served / cost", "TTFT p50", "TTFT p99", "gap p99", title="Each idea on and off")
    for name, row in tables["ablation"].items():
        for switch, found in (("on", row), ("off", row["off"])):
            waits = (f"{found[key]:.3f} s" for key in ("ttft_p50_s", "ttft_p99_s", "gap_p99_s"))
            table.add_row(IDEAS[name][0] if switch == "on" else "", switch, f"{found['bcr']:.3f}", *waits)
    console.print(table)
    print_sensitivity(tables["sensitivity"], console)


def print_sensitivity(sensitivity: Mapping[str, Mapping[str, float]], console: Console) -> None:
    """Print what each assumption, changed alone, does to some figures."""
    names = ("rate_gain", "bcr_gain", "ttft_change", "rld_token_share", "ttft_p50_same_dc_s", "ttft_p50_naive_s")
    table = Table("assumption", *(REPORTED[name][1] for name in names), title="One assumption changed at a time")
    for assumption, figures in sensitivity.items():
        table.add_row(assumption, *(show(name, figures[name]) for name in names))
    console.print(table)


def print_comparison(found: Comparison, console: Console) -> None:
    """Print fleets side by side."""
    table = Table(title="At the traffic's own rate; served: the highest rate within the promises")
    columns = (
        "topology",
        "P/RLD/MD",
        "wanted",
        "cost/h",
        "good",
        "TTFT p50",
        "p90",
        "p99",
        "gap p99",
        "ITL p50",
        "hit P",
        "MD",
    )
    for column in (*columns, "RLD tokens", "singular", "WAN GB", "served/s", "served/cost"):
        table.add_column(column, justify="left" if column == "topology" else "right", no_wrap=True)
    for one, result, served in zip(found.contenders, found.results, found.served_per_s, strict=True):
        report = result.report
        table.add_row(
            one.name,
            "/".join(str(count) for count in one.counts.values()),
            "/".join(f"{result.wanted[role]:.1f}" for role in one.counts),
            f"{report.cost:.2f}",
            f"{report.good:.1%}",
            *(f"{wait:.2f}" for wait in (report.ttft.p50_s, report.ttft.p90_s, report.ttft.p99_s, report.gap.p99_s)),
            f"{report.itl.p50_s * 1e3:.0f} ms",
            f"{report.prefill_hit:.0%}",
            f"{report.main_hit:.0%}",
            f"{report.token_share['RLD']:.1%}",
            f"{report.singular:.1%}",
            f"{report.wan_bytes / 1e9:.0f}",
            f"{served:.2f}",
            f"{served / one.fleet.cost:.3f}",
        )
    console.print(table)
