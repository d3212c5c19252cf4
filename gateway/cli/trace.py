"""``pdd trace``: anonymous lines of requests, switched on and exported; see ``gateway.telemetry.trace``."""

import argparse
import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from gateway.cli.writing import (
    REPLY_TIMEOUT_S,
    CannotOperate,
    add_change,
    add_place,
    announce,
    find_author,
    open_store,
    read_duration_s,
    read_settings,
    run_change,
)
from gateway.config.document_store import DocumentStore
from gateway.config.rulebook import RULES
from gateway.telemetry.trace import TraceLine, read_rows
from policies.rule_documents import DEFAULT, merge

DAY_S = 86_400


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands."""
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    text = "have gateways keep a line of each request (the rule `trace.record`), or stop it"
    record = verbs.add_parser("record", help=text, description=text)
    record.add_argument("--stop", action="store_true", help="keep none from now on; those that are there stay")
    record.add_argument("--tenant", default=DEFAULT, metavar="NAME", help="whose requests (default: everybody's)")
    add_place(record)
    add_change(record)
    text = "print the lines that were kept, in the fields of Mooncake's traces and ours"
    export = verbs.add_parser("export", help=text, description=text)
    export.add_argument(
        "--since", type=read_duration_s, default=DAY_S, metavar="DURATION", help="like 12h or 7d (default: 1d)"
    )
    export.add_argument("--out", type=Path, metavar="FILE", help="(default: standard output)")
    add_place(export)


def run(args: argparse.Namespace) -> int:
    """Do what the verb says; the exit status."""

    async def work() -> None:
        settings = read_settings(args)
        if args.verb == "export" and settings is not None and settings.trace.file is not None:
            write(read_file(Path(settings.trace.file), args.since), args.out)
            return
        async with open_store(args) as store, asyncio.timeout(REPLY_TIMEOUT_S):
            if args.verb == "record":
                await switch(store, args)
            else:
                rows = await read_rows(store.redis, since_ms(args.since))
                write(rows, args.out)

    return run_change("trace", work)


async def switch(store: DocumentStore, args: argparse.Namespace) -> None:
    """Change the one rule in a tenant's document."""
    found = await store.get(RULES, args.tenant)
    before: dict[str, Any] = {} if found is None else msgspec.json.decode(found.body)
    value = merge(before, {"trace": {"record": not args.stop}})
    expected = args.expect_version if args.expect_version is not None else (0 if found is None else found.version)
    document = await store.put(RULES, args.tenant, value, author=find_author(args), expected_version=expected)
    await announce(store, document, args)


def since_ms(since_s: int) -> int:
    """Return the moment so long ago, in milliseconds since 1970."""
    return int((time.time() - since_s) * 1000)


def read_file(path: Path, since_s: int) -> list[TraceLine]:
    """Read the lines of a file that a gateway wrote. Raises CannotOperate."""
    try:
        rows = [msgspec.json.decode(line, type=TraceLine) for line in path.read_bytes().splitlines()]
    except OSError as error:
        raise CannotOperate(f"trace.file: cannot read {path}: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise CannotOperate(f"trace.file: {path}: {error}") from None
    return [row for row in rows if row.timestamp >= since_ms(since_s)]


def write(rows: list[TraceLine], out: Path | None) -> None:
    """Write lines in order of time, the first at 0, as ``pdd simulate --trace`` takes them. Raises CannotOperate."""
    if not rows:
        raise CannotOperate("there are no lines: switch `trace.record` on with `pdd trace record`, and serve requests")
    ordered = sorted(rows, key=lambda row: row.timestamp)
    first = ordered[0].timestamp
    lines = [msgspec.json.encode(msgspec.structs.replace(row, timestamp=row.timestamp - first)) for row in ordered]
    data = b"\n".join(lines) + b"\n"
    if out is None:
        sys.stdout.buffer.write(data)
    else:
        out.write_bytes(data)
