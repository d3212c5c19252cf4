"""``pdd usage``: what tenants have used."""

import argparse
import asyncio
import time
from dataclasses import asdict, fields

from rich.console import Console
from rich.table import Table

from gateway.auth.identify import OPEN_TENANT
from gateway.auth.tenants import TENANT_KIND
from gateway.cli.reading import print_json
from gateway.cli.writing import REPLY_TIMEOUT_S, add_place, open_store, read_duration_s, run_change
from gateway.config.document_store import DocumentStore
from gateway.limits.usage import HOUR_S, KEPT_S, Use, read_usage

WIDTH = 180


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--tenant", metavar="ID", help="(default: every tenant; without keys there is `default` alone)")
    parser.add_argument(
        "--since", type=read_duration_s, default=86_400, metavar="DURATION", help="like 12h or 7d (default: 1d)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_place(parser)


def run(args: argparse.Namespace) -> int:
    """Show the use; the exit status."""

    async def work() -> None:
        async with open_store(args) as store, asyncio.timeout(REPLY_TIMEOUT_S):
            found = await find_usage(store, args.tenant, args.since)
        if args.json:
            print_json({name: {model: asdict(use) for model, use in uses.items()} for name, uses in found.items()})
        else:
            print_usage(found)

    return run_change("usage", work)


async def find_usage(store: DocumentStore, tenant: str | None, since_s: int) -> dict[str, dict[str, Use]]:
    """Return the use by tenant and model in the whole hours that the last ``since_s`` seconds touch."""
    last_hour = int(time.time()) // HOUR_S
    first_hour = int(time.time() - min(since_s, KEPT_S)) // HOUR_S
    known = [document.name for document in await store.all_of(TENANT_KIND)]
    names = [tenant] if tenant is not None else sorted({OPEN_TENANT, *known})
    found = {name: await read_usage(store.redis, name, first_hour, last_hour, store.prefix) for name in names}
    return {name: uses for name, uses in found.items() if uses or name == tenant}


def print_usage(found: dict[str, dict[str, Use]]) -> None:
    """Print a row for each tenant and model."""
    names = [one.name for one in fields(Use)]
    table = Table("tenant", "model")
    for name in names:
        table.add_column(name, justify="right")
    for tenant, uses in found.items():
        for model, use in sorted(uses.items()):
            amounts = [getattr(use, name) for name in names]
            cells = [f"{amount:.4f}" if isinstance(amount, float) else str(amount) for amount in amounts]
            table.add_row(tenant, model, *cells)
    Console(width=WIDTH, emoji=False, markup=False).print(table)
