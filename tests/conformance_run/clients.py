"""Real clients against gateways whose plans are relays: which features of theirs work, over all families."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.compat.command_lines import PACKAGES, try_one
from tests.compat.drive import ROOT, open_stands, run_client
from tests.compat.table import CLIENTS, Client, Outcome, draw
from tests.conformance_run.parts import NotRun
from tests.gateway.api.test_families import FAMILIES

ENVIRONMENTS = ROOT / ".venv-compat"


async def ask_all(clients: Sequence[Client]) -> dict[str, Outcome]:
    """Return what came of each client."""
    outcomes = {}
    async with open_stands(sorted(FAMILIES)) as stands:
        for client in clients:
            outcomes[client.name] = await run_client(client.command(ENVIRONMENTS), stands)
            print(f"{client.name}: {outcomes[client.name].version}", flush=True)
        for stand in stands:
            print(f"{stand.family}: calls of P, RLD and MD: {', '.join(map(str, stand.legs.values()))}")
            if not all(stand.legs.values()):
                raise NotRun(f"{stand.family} was not relayed: {stand.legs}")
    return outcomes


def try_command_lines(folder: Path) -> dict[str, Outcome]:
    """Return what came of agents' command lines, where they are installed."""
    if not folder.is_dir():
        print(f"NOT RUN: {', '.join(PACKAGES)}: make compat-agents installs them")
        return {}
    return {name: asyncio.run(try_one(name, folder)) for name in PACKAGES}


def run() -> Mapping[str, object]:
    """Return ``clients.NAME.FEATURE``, "ok" or what went wrong, and print the table."""
    if not ENVIRONMENTS.exists():
        raise NotRun("make compat makes the clients' environments (.venv-compat)")
    places = {client: ENVIRONMENTS / client.module for client in CLIENTS}
    missing = {client.name: place.read_text("utf-8") for client, place in places.items() if place.is_file()}
    outcomes = asyncio.run(ask_all([client for client, place in places.items() if place.is_dir()]))
    outcomes |= try_command_lines(ENVIRONMENTS / "command_lines")
    for name, reason in missing.items():
        print(f"NOT RUN: {name}: {reason}")
    print("\n".join(draw(outcomes)))
    found = {f"clients.{name}.{one}": end for name, out in outcomes.items() for one, end in out.features.items()}
    return found | {f"clients.{name}.not_run": reason for name, reason in missing.items()}
