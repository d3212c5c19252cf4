"""Real clients against gateways whose plans are relays: which features of theirs work, over all families."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

from tests.compat.drive import ROOT, open_stands, run_client
from tests.compat.table import CLIENTS, Outcome, draw
from tests.conformance_run.parts import NotRun
from tests.gateway.api.test_families import FAMILIES

ENVIRONMENTS = ROOT / ".venv-compat"


async def ask_all(environments: Path) -> dict[str, Outcome]:
    """Return what came of each client that is installed."""
    outcomes = {}
    async with open_stands(sorted(FAMILIES)) as stands:
        for client in CLIENTS:
            if not (environments / client.module).exists():
                print(f"NOT RUN: {client.name} could not be installed", flush=True)
                continue
            outcomes[client.name] = await run_client(client.command(environments), stands)
            print(f"{client.name}: {outcomes[client.name].version}", flush=True)
        for stand in stands:
            print(f"{stand.family}: calls of P, RLD and MD: {', '.join(map(str, stand.legs.values()))}")
            if not all(stand.legs.values()):
                raise NotRun(f"{stand.family} was not relayed: {stand.legs}")
    return outcomes


def run() -> Mapping[str, object]:
    """Return ``clients.NAME.FEATURE``, "ok" or what went wrong, and print the table."""
    if not ENVIRONMENTS.exists():
        raise NotRun("make compat makes the clients' environments (.venv-compat)")
    outcomes = asyncio.run(ask_all(ENVIRONMENTS))
    print("\n".join(draw(outcomes)))
    found = {f"clients.{name}.{one}": end for name, out in outcomes.items() for one, end in out.features.items()}
    missing = [client.name for client in CLIENTS if client.name not in outcomes]
    return found | {f"clients.{name}.not_run": "could not be installed" for name in missing}
