"""``pdd audit``: who changed which document, and when; never what is in it."""

import argparse
import asyncio
from collections.abc import Sequence

from msgspec import to_builtins

from gateway.cli.reading import print_json
from gateway.cli.writing import REPLY_TIMEOUT_S, add_place, describe_moment, open_store, read_duration_s, run_change
from gateway.config.document_store import MOST_AUDIT, AuditEntry

LIMIT = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--since",
        type=read_duration_s,
        metavar="DURATION",
        help="like 90s, 12h or 7d (default: as far back as is kept)",
    )
    parser.add_argument(
        "--limit", type=read_limit, default=LIMIT, metavar="N", help="the newest N changes (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_place(parser)


def read_limit(text: str) -> int:
    """Return how many entries are asked for, as an argument's type. Raises ArgumentTypeError."""
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= MOST_AUDIT):
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 to {MOST_AUDIT}")
    return int(text)


def run(args: argparse.Namespace) -> int:
    """Show the newest changes; the exit status."""

    async def work() -> None:
        async with open_store(args) as store, asyncio.timeout(REPLY_TIMEOUT_S):
            entries = await store.audit(args.limit, args.since)
        show(entries, args.json)

    return run_change("audit", work)


def show(entries: Sequence[AuditEntry], as_json: bool) -> None:
    """Print the entries, a line each."""
    if as_json:
        print_json(to_builtins(entries))
        return
    for one in entries:
        what = "deleted" if one.deleted else "changed" if one.from_version else "created"
        before = f"{one.from_version} -> " if one.from_version else ""
        moment, versions = describe_moment(one.at_ms), f"version {before}{one.to_version}"
        print(f"{moment}  {one.author}  {what} {one.kind} {one.name}  {versions}")
