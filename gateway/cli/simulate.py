"""``pdd simulate``: what a fleet would do with some traffic, in one region or two; and PDD's reported scenario."""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import msgspec
import uvloop

from backends.errors import BackendError
from gateway.cli.calibrate import RATE_PER_S as CALIBRATE_RATE_PER_S
from gateway.cli.calibrate import REQUESTS as CALIBRATE_REQUESTS
from gateway.cli.calibrate import calibrate
from gateway.cli.planning import (
    add_hardware,
    add_traffic,
    change_scenario,
    pick_traffic,
    read_rules,
    write_json,
)
from gateway.cli.profile import CannotProfile
from gateway.config.fleet_settings import BadSettings
from gateway.demo.processes import DemoFailed
from gateway.planning.calibration import print_calibration
from gateway.planning.compare import Contender, compare_fleets, find_budget, make_contenders
from gateway.planning.fleet_file import read_fleet
from gateway.planning.page import comparison_page, paper_page
from gateway.planning.paper import study_paper
from gateway.planning.scenario import Scenario, load_scenario
from gateway.planning.tables import make_console, print_comparison, print_paper
from gateway.planning.workers import Workers, open_workers
from policies.rules import BadRules
from policies.simulator.topologies import TOPOLOGIES, FleetKind


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument(
        "--scenario",
        default="paper",
        metavar="FILE",
        help="constants, as in gateway/planning/paper.yaml; without --trace and --topology its study is run "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--topology",
        action="append",
        default=[],
        metavar="NAME|FILE",
        help=f"{', '.join(TOPOLOGIES)}, or a gateway's configuration whose engines name their chip; may be given more "
        "than once (default: those four, at equal cost)",
    )
    parser.add_argument("--budget", type=float, metavar="COST", help="of each fleet, in prices of A (default: fits)")
    parser.add_argument("--rules", type=Path, metavar="FILE", help="rules, as `pdd rules set` takes them")
    parser.add_argument(
        "--calibrate",
        action="store_true",
        help="run the demo's engines under a small real load, simulate the same, and compare; --requests and --rate "
        f"(default: {CALIBRATE_REQUESTS} at {CALIBRATE_RATE_PER_S}/s)",
    )
    add_traffic(parser, "--trace")
    add_hardware(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with plots there")


def run(args: argparse.Namespace) -> int:
    """Simulate, print, write; the exit status."""
    if args.calibrate:
        return _calibrate(args)
    try:
        scenario = change_scenario(load_scenario(args.scenario), args)
        with open_workers(args.jobs, quiet=not sys.stderr.isatty()) as workers:
            if args.trace is None and not args.topology and not args.agents:
                tables, page = _study(scenario, workers)
            else:
                tables, page = _compare(scenario, workers, args)
        if args.json is not None:
            write_json(args.json, tables)
        if args.html is not None:
            args.html.write_text(page, encoding="utf-8")
    except (BadSettings, BadRules, OSError) as error:
        print(f"pdd simulate: {error}", file=sys.stderr)
        return 2
    return 0


def _calibrate(args: argparse.Namespace) -> int:
    console = make_console()
    requests, rate = args.requests or CALIBRATE_REQUESTS, args.rate or CALIBRATE_RATE_PER_S
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            tables = runner.run(calibrate(requests, rate, args.seed or 1, console.log))
        print_calibration(tables["calibration"], console)
        if args.json is not None:
            write_json(args.json, tables)
    except (DemoFailed, BackendError, CannotProfile, httpx.HTTPError, OSError) as error:
        print(f"pdd simulate: {error}", file=sys.stderr)
        return 1
    return 0


def _study(scenario: Scenario, workers: Workers) -> tuple[dict[str, Any], str]:
    study = study_paper(scenario, workers)
    print_paper(study.tables, make_console())
    return study.tables, paper_page(scenario, study.tables, study.results)


def _compare(scenario: Scenario, workers: Workers, args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    rules = read_rules(args.rules, scenario)
    own = rules if args.rules is not None else None
    traffic, rate = pick_traffic(scenario, args)
    kinds: Sequence[str] = args.topology or TOPOLOGIES
    named: list[FleetKind] = [kind for kind in TOPOLOGIES if kind in kinds]
    budget = args.budget or find_budget(scenario, traffic, rate)
    contenders: list[Contender] = make_contenders(scenario, traffic, named, budget, rules)
    contenders += [read_fleet(Path(name), scenario, traffic, own) for name in kinds if name not in TOPOLOGIES]
    found = compare_fleets(contenders, traffic, rate, scenario, workers)
    console = make_console()
    console.print(f"{len(found.results)} fleets, budget {budget:.2f} an hour, {rate:.2f} requests/s on average")
    print_comparison(found, console)
    tables = {"scenario": msgspec.to_builtins(scenario), "rate_per_s": rate, "budget": budget, **found.tables()}
    results = {one.name: result for one, result in zip(contenders, found.results, strict=True)}
    return tables, comparison_page(scenario, tables, results)
