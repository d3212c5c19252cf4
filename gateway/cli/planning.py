"""What ``pdd simulate`` and ``pdd plan`` share: traffic, hardware and rules from options."""

import argparse
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from gateway.config.fleet_settings import BadSettings
from gateway.config.settings import read_yaml
from gateway.planning.scenario import Scenario
from gateway.planning.traffic import read_traffic
from policies.rule_documents import build_rules
from policies.rules import Rules
from policies.simulator.arrivals import ARRIVALS
from policies.simulator.cases import Agents, Recorded
from policies.simulator.chips import CHIPS

_LINK = re.compile(r"(\d+(?:\.\d+)?)([gm])")
_SLO = {"ttft": "ttft_s", "total": "total_s", "itl": "itl_s"}
AGENTS_PER_S = 5.0


def add_traffic(parser: argparse.ArgumentParser, name: str) -> None:
    """Declare what comes; ``name`` is the option that names a trace."""
    text = "Mooncake's, TraceLab's or `pdd trace export`'s JSON lines, or Azure's CSV"
    parser.add_argument(name, type=Path, dest="trace", metavar="FILE", help=text)
    parser.add_argument("--agents", action="store_true", help="the scenario's made-up agents, at --rate")
    parser.add_argument("--arrivals", choices=list(ARRIVALS), default="poisson", help="(default: %(default)s)")
    parser.add_argument(
        "--closed", type=int, default=0, metavar="N", help="N agents that each wait for the answer before they ask on"
    )
    parser.add_argument("--rate", type=float, metavar="PER_S", help="requests/s (default: the trace's own; agents: 5)")
    parser.add_argument("--requests", type=int, metavar="N", help="of one simulation (default: all, or the scenario's)")
    parser.add_argument("--seed", type=int, metavar="N", help="same seed, same result (default: the scenario's)")


def add_hardware(parser: argparse.ArgumentParser) -> None:
    """Declare what serves it."""
    parser.add_argument(
        "--chips",
        metavar="A,B",
        help="P's and MD's, like H800,H200 or H800=1,H200=1.2; without prices those of policies/simulator/chips.py",
    )
    parser.add_argument("--link", metavar="RATE", help="like 100g or 500m: bits a second between the regions")
    parser.add_argument("--model", metavar="NAME", help="of policies/simulator/llms.py (default: the scenario's)")
    parser.add_argument(
        "--slo", metavar="NAME=S,...", help="promised seconds, like ttft=5,total=30,itl=0.05 (default: the scenario's)"
    )
    parser.add_argument("--jobs", type=int, metavar="N", help="processes at a time (default: the cores)")


def change_scenario(scenario: Scenario, args: argparse.Namespace) -> Scenario:
    """Return the scenario as the options change it. Raises BadSettings."""
    changes: dict[str, Any] = {}
    for name in ("model", "seed", "requests"):
        if getattr(args, name) is not None:
            changes[name] = getattr(args, name)
    if args.chips is not None:
        changes |= _read_chips(args.chips)
    if args.link is not None:
        changes["line_gbit"] = read_link_gbit(args.link)
        changes["line_cost"] = scenario.line_cost * changes["line_gbit"] / scenario.line_gbit
    if args.slo is not None:
        changes |= _read_slo(args.slo)
    try:
        return msgspec.convert({**msgspec.to_builtins(scenario), **changes}, Scenario)
    except msgspec.ValidationError as error:
        raise BadSettings(str(error)) from None


def read_link_gbit(text: str) -> float:
    """Read a rate like 100g. Raises BadSettings."""
    match = _LINK.fullmatch(text.lower())
    if match is None:
        raise BadSettings(f"--link {text}: like 100g or 500m")
    return float(match[1]) * (1.0 if match[2] == "g" else 0.001)


def _read_chips(text: str) -> dict[str, Any]:
    """Names and prices of two chips; prices without a unit, the first one's is 1 where none is given."""
    from_table = {name: chip.price_per_hour for name, chip in CHIPS.items()}
    parts = [part.partition("=") for part in text.split(",")]
    if len(parts) != 2:
        raise BadSettings(f"--chips {text}: two are needed, P's and MD's")
    names = [name for name, _, _ in parts]
    try:
        given = [float(price) if price else None for _, _, price in parts]
    except ValueError:
        raise BadSettings(f"--chips {text}: a price is a number") from None
    for name in names:
        if name not in from_table:
            raise BadSettings(f"chip {name} is not known; there are {', '.join(from_table)}")
    if all(price is None for price in given):
        unit = from_table[names[0]]
        prices = [from_table[name] / unit for name in names]
    elif None in given:
        raise BadSettings(f"--chips {text}: give both prices or none")
    else:
        prices = [price or 0.0 for price in given]
    return {"chip_a": names[0], "chip_b": names[1], "price_a": prices[0], "price_b": prices[1]}


def _read_slo(text: str) -> dict[str, float]:
    changes = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        if name not in _SLO:
            raise BadSettings(f"--slo {part}: {', '.join(_SLO)} can be promised")
        try:
            changes[_SLO[name]] = float(value)
        except ValueError:
            raise BadSettings(f"--slo {part}: a number of seconds") from None
    return changes


def pick_traffic(scenario: Scenario, args: argparse.Namespace) -> tuple[Agents | Recorded, float]:
    """Return what comes, and how many requests in a second. Raises BadSettings."""
    agents = replace(scenario.traffic, arrivals=args.arrivals, running=args.closed)
    if args.trace is None:
        return agents, args.rate or AGENTS_PER_S
    recorded = read_traffic(args.trace, agents, scenario.seed, args.requests)
    return recorded, args.rate or recorded.rate_per_s


def read_rules(path: Path | None, scenario: Scenario) -> Rules:
    """Return the rules of a file over the gateway's defaults, with those of the scenario where it has none.

    Raises BadRules and BadSettings.
    """
    slo = {"ttft_s": scenario.ttft_s, "total_s": scenario.total_s}
    own = {"slo": slo, "direct_wan_bound_s": scenario.direct_wan_bound_s}
    return build_rules(own, {} if path is None else read_yaml(path)).stable


def write_json(path: Path, value: Any) -> None:
    """Write figures to a file."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(value)) + b"\n")
