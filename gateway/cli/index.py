"""``pdd index``: what the prefix index knows of every instance's cache, and how fresh that is."""

import argparse
from collections.abc import Coroutine
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from gateway.cli.reading import (
    CannotInspect,
    Observer,
    add_config,
    add_tenant,
    open_observer,
    print_json,
    read_file,
    run_to_end,
)
from gateway.config.settings import Settings, load_settings
from gateway.errors import GatewayError
from gateway.http.body import JsonObject, parse_object

WIDTH = 120


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's actions and their options."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="stats|lookup")
    stats = actions.add_parser("stats", help="blocks known of each instance, and their age")
    add_config(stats)
    lookup = actions.add_parser("lookup", help="how much of a prompt each instance has cached")
    add_config(lookup)
    add_tenant(lookup)
    lookup.add_argument("--model", required=True, metavar="NAME", help="one of the configuration's models")
    lookup.add_argument("--prompt", required=True, type=Path, metavar="FILE", help="a text, or a request body in JSON")


def run(args: argparse.Namespace) -> int:
    """Show the index; the exit status."""

    async def ask(settings: Settings, body: bytes | None) -> dict[str, Any]:
        async with open_observer(settings) as seen:
            return await find_stats(seen) if body is None else await look_up(seen, args.model, body, args.tenant)

    def work() -> Coroutine[None, None, dict[str, Any]]:
        return ask(load_settings(args.config), read_file(args.prompt) if args.action == "lookup" else None)

    return run_to_end(f"index {args.action}", work, print_json if args.json else print_found)


async def find_stats(seen: Observer) -> dict[str, Any]:
    """Return ``instances``: what is known of each; None where its engine cannot be asked what it is.

    ``update_age_s`` says for how long nobody has confirmed that the entries are those of the engine.
    """
    ages = await seen.index.ages()
    found = {
        name: asdict(stats) | {"update_age_s": ages.get(name)}
        for name, stats in sorted(seen.index.stats().instances.items())
    }
    away = {instance.spec.id: None for instance in seen.gateway.pools.instances if instance.spec.id not in found}
    return {"instances": found | away}


async def look_up(seen: Observer, model: str, body: bytes, tenant: str) -> dict[str, Any]:
    """Return ``prompt_tokens`` and, by instance, the hit of a tenant's prompt and its age.

    Raises GatewayError, CannotInspect and GatewayError.
    """
    request = (await seen.gateway.explainer.prepare(as_request(body) | {"model": model}, len(body), tenant)).requests[0]
    prompt = request.prompt
    found = seen.index.lookup(request.model, prompt, request.cache_salt)
    hits = {name: msgspec.to_builtins(hit) for name, hit in sorted(found.items())}
    stats = (await find_stats(seen))["instances"]
    return {
        "prompt_tokens": len(prompt),
        "instances": {name: hit | {"update_age_s": stats[name]["update_age_s"]} for name, hit in hits.items()},
    }


def as_request(body: bytes) -> JsonObject:
    """Read a request body; anything that is none is a prompt's text. Raises CannotInspect."""
    try:
        value = parse_object(body)
    except GatewayError:
        value = {}
    if "messages" in value or "prompt" in value:
        return value
    try:
        return {"prompt": body.decode(), "max_tokens": 1}
    except UnicodeDecodeError:
        raise CannotInspect("the prompt is not UTF-8 text") from None


def print_found(found: dict[str, Any]) -> None:
    """Print one row for each instance."""
    console = Console(width=WIDTH, emoji=False, markup=False)
    if "prompt_tokens" in found:
        console.print(f"{found['prompt_tokens']} prompt tokens", highlight=False)
    columns = list(dict.fromkeys(key for row in found["instances"].values() if row for key in row))
    table = Table("instance", *columns)
    for name, row in found["instances"].items():
        table.add_row(name, *([_cell(row[column]) for column in columns] if row else ["not reachable"]))
    console.print(table)


def _cell(value: object) -> str:
    match value:
        case None:
            return "unknown"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.1f}"
    return str(value)
