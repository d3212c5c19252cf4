"""``pdd plan``: the fleet for some traffic, whether a second region pays, and the topology and rules to load."""

import argparse
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from gateway.cli.planning import (
    add_hardware,
    add_traffic,
    change_scenario,
    pick_traffic,
    read_rules,
    write_json,
)
from gateway.cli.writing import to_yaml
from gateway.config.fleet_settings import BadSettings
from gateway.planning.plan import Candidate, FleetPlan, make_plan, reckon, why_not
from gateway.planning.scenario import Scenario, load_scenario
from gateway.planning.tables import make_console
from gateway.planning.workers import open_workers
from policies.rules import BadRules
from policies.simulator.closed_form import ClosedForm


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("--scenario", default="paper", metavar="FILE", help="other constants (default: %(default)s)")
    parser.add_argument("--rules", type=Path, metavar="FILE", help="rules to begin with")
    add_traffic(parser, "--traffic")
    add_hardware(parser)
    parser.add_argument("--quick", action="store_true", help="the closed form only, in milliseconds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    parser.add_argument("--topology-out", type=Path, metavar="FILE", help="write engines and links there")
    parser.add_argument("--rules-out", type=Path, metavar="FILE", help="write the rules there, for `pdd rules set`")


def run(args: argparse.Namespace) -> int:
    """Search, print, write; the exit status."""
    try:
        scenario = change_scenario(load_scenario(args.scenario), args)
        traffic, rate = pick_traffic(scenario, args)
        console = make_console()
        print_form(reckon(scenario, traffic, rate), scenario, rate, console)
        reasons = why_not(scenario, traffic, rate)
        if not args.quick:
            rules = read_rules(args.rules, scenario)
            with open_workers(args.jobs, quiet=not sys.stderr.isatty()) as workers:
                plan = make_plan(scenario, traffic, rate, rules, workers)
            print_plan(plan, scenario, console)
            _write(plan, scenario, args)
            if not plan.pays:
                reasons.append(f"simulated, PDD serves {plan.gain:+.0%} by cost against the best fleet in one region")
        for reason in reasons:
            console.print(f"against PDD: {reason}")
    except (BadSettings, BadRules, OSError) as error:
        print(f"pdd plan: {error}", file=sys.stderr)
        return 2
    return 0


def print_form(form: ClosedForm, scenario: Scenario, rate_per_s: float, console: Console) -> None:
    """Print what the formula says."""
    a, b = scenario.chip_a, scenario.chip_b
    console.print(
        f"Closed form at {rate_per_s:.3g} requests/s: prefill {form.pdd.prefill_s:.2f} s of an instance of {a}, decode "
        f"{form.same.decode_s:.2f} s of {a} ({form.same.batch} at once) or {form.pdd.decode_s:.2f} s of {b} "
        f"({form.pdd.batch}); {form.wan_bytes / 1e6:.0f} MB a request cross, {form.line_rate_per_s:.3g} requests/s "
        "fill the line."
    )
    verdict = "PDD pays" if form.gain > 0 else "PDD does not pay"
    console.print(f"Gain against {a} alone in one region: {form.gain:+.0%}. {verdict}, by this form.")


def print_plan(plan: FleetPlan, scenario: Scenario, console: Console) -> None:
    """Print what the search found."""
    table = Table(title="Fleets: cost against what is served within the promises; * is on the frontier")
    for name in ("", "topology", "chips", "P", "RLD", "MD", "line", "cost/h", "served/s", "served/cost"):
        table.add_column(name, no_wrap=True)
    frontier = plan.frontier
    for one in sorted(plan.candidates, key=lambda one: one.cost):
        table.add_row("*" if one in frontier else "", *_cells(one))
    console.print(table)
    best, rival, report = plan.best, plan.rival, plan.result.report
    console.print(
        f"Best of PDD: {best.counts.p} P, {best.counts.rld} RLD, {best.counts.md} MD over {best.line_gbit:.3g} Gbit/s: "
        f"{best.bcr:.3f} served by cost, {plan.gain:+.0%} against {rival.counts.p} P and {rival.counts.md} MD of "
        f"{rival.chip} in one region ({rival.bcr:.3f})."
    )
    console.print(
        f"There TTFT is {report.ttft.p50_s:.2f} s (p50) and {report.ttft.p99_s:.2f} s (p99), the gap "
        f"{report.gap.p99_s:.2f} s (p99), RLD makes {report.token_share['RLD']:.1%} of the tokens, "
        f"{report.good:.1%} of the requests are good."
    )
    console.print("PDD pays." if plan.pays else "PDD does not pay here.", style="bold")
    table = Table("changed alone", "gain by the closed form", title="What it is sensitive to")
    for name, gain in plan.sensitivity.items():
        table.add_row(name, f"{gain:+.0%}")
    console.print(table)
    console.print("rules, for `pdd rules set` (`pdd rules check` checks a file of them):")
    console.print(to_yaml(dict(plan.rules)).rstrip())


def _cells(one: Candidate) -> list[str]:
    line = f"{one.line_gbit:.3g} Gbit/s" if one.kind == "pdd" else ""
    counts = (str(count) for count in one.counts.as_dict().values())
    return [one.kind, one.chip, *counts, line, f"{one.cost:.2f}", f"{one.served_per_s:.2f}", f"{one.bcr:.3f}"]


def _write(plan: FleetPlan, scenario: Scenario, args: argparse.Namespace) -> None:
    if args.json is not None:
        report = plan.result.report
        write_json(
            args.json,
            {
                "closed_form_gain": plan.form.gain,
                "gain": plan.gain,
                "pays": plan.pays,
                "best": plan.best.row(),
                "same_region": plan.rival.row(),
                "frontier": [one.row() for one in plan.frontier],
                "candidates": [one.row() for one in plan.candidates],
                "report": report,
                "rules": plan.rules,
                "topology": make_topology(plan.best, scenario),
                "sensitivity": plan.sensitivity,
            },
        )
    if args.rules_out is not None:
        args.rules_out.write_text(to_yaml(dict(plan.rules)), encoding="utf-8")
    if args.topology_out is not None:
        args.topology_out.write_text(to_yaml(make_topology(plan.best, scenario)), encoding="utf-8")


def make_topology(best: Candidate, scenario: Scenario) -> dict[str, Any]:
    """Write the fleet as a gateway's configuration, whose addresses are to be filled in."""
    kinds = (
        ("P", best.counts.p, "near", scenario.chip_a, scenario.prefill_chips),
        ("RLD", best.counts.rld, "near", scenario.chip_a, scenario.decode_chips),
        ("MD", best.counts.md, "far", scenario.chip_b, scenario.decode_chips),
    )
    engines = [
        {
            "id": f"{role.lower()}{number}",
            "role": role,
            "model": scenario.model,
            "region": region,
            "url": f"http://{role.lower()}{number}.{region}:8000",
            "chip": f"{chips}x{chip}",
        }
        for role, count, region, chip, chips in kinds
        for number in range(count)
    ]
    link = {"source": "near", "dest": "far", "bridge": "http://bridge.far:9000", "rate_mbit": best.line_gbit * 1000}
    return {
        "models": [{"name": scenario.model, "path": f"/models/{scenario.model}"}],
        "engines": engines,
        "links": [link],
    }
