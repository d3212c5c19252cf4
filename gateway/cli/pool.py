"""``pdd pool``: engines and links added, drained and removed while every gateway runs on."""

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from backends.transport.address import without_credentials
from gateway.cli.writing import (
    CannotOperate,
    add_change,
    add_place,
    announce,
    find_author,
    read_settings,
    read_value,
    run_on_store,
)
from gateway.config.document_store import DocumentStore
from gateway.config.fleet_settings import BadSettings
from gateway.config.settings import Settings, link_name
from gateway.fleet.topology import Topology, read_topology
from gateway.operator.fleet import TopologyBody, drain, put_body, read_body, undrain


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands."""
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")

    def add(name: str, text: str, what: str | None = None) -> argparse.ArgumentParser:
        verb = verbs.add_parser(name, help=text, description=text)
        if what is not None:
            verb.add_argument("ids", nargs="+", metavar=what)
        add_place(verb)
        if name != "list":
            add_change(verb)
        return verb

    add("list", "list engines and links; with --config those of the configuration too")
    new = add("add", "add engines and links, or put others in their place")
    new.add_argument("file", type=Path, metavar="FILE", help="YAML or JSON with `engines` and `links` lists; -: stdin")
    add("drain", "give engines no new requests; running ones go on to their end", "ID")
    add("undrain", "give engines requests again", "ID")
    add("remove", "take engines or links (by name, else SOURCE->DEST) out; running requests go on to their end", "ID")


def run(args: argparse.Namespace) -> int:
    """Run one subcommand; the exit status."""
    return run_on_store("pool", args, print_fleet if args.verb == "list" else change)


async def print_fleet(store: DocumentStore, args: argparse.Namespace) -> None:
    """Print a line for each engine and link."""
    topology = read_topology((await read_body(store))[0])
    settings = read_settings(args)
    print("\n".join(describe(topology, settings)) or "no changes to any configuration")


async def change(store: DocumentStore, args: argparse.Namespace) -> None:
    """Change the document as the subcommand says. Raises CannotOperate, Conflict."""
    body, version = await read_body(store)
    if args.verb != "add":
        await check_names(store, args, body)
    new = EDITS[args.verb](body, args)
    settings = read_settings(args)
    expected = version if args.expect_version is None else args.expect_version
    try:
        document = await put_body(store, settings, new, find_author(args), expected)
    except BadSettings as error:
        raise CannotOperate(f"refused, nothing was changed: {error}") from None
    await announce(store, document, args)


async def check_names(store: DocumentStore, args: argparse.Namespace, body: TopologyBody) -> None:
    """Refuse ids of which neither gateways, the document nor the configuration know. Raises CannotOperate."""
    settings, told = read_settings(args), [ack.fleet for ack in await store.living() if ack.fleet]
    if settings is None and not told:
        print("no gateway process tells of its engines, and no --config is given: ids are not checked", file=sys.stderr)
        return
    known = {name for fleet in told for name in fleet} | set(body.get("draining", ()))
    known |= {*body.get("engines", ()), *body.get("links", ())}
    if settings is not None:
        known |= {engine.id for engine in settings.engines} | {link_name(link) for link in settings.links}
    unknown = [id_ for id_ in args.ids if id_ not in known]
    if unknown and (told or settings is None or not settings.discovery):
        kind = "link" if "->" in unknown[0] else "engine"
        raise CannotOperate(f"there is no {kind} {unknown[0]!r}; there are {', '.join(sorted(known)) or 'none'}")


def _add(body: TopologyBody, args: argparse.Namespace) -> TopologyBody:
    value = read_value(args.file)
    if not isinstance(value, dict) or not value or not value.keys() <= {"engines", "links"}:
        raise CannotOperate("the file must hold `engines` or `links`, or both, each a list")
    try:
        engines = {str(engine["id"]): engine for engine in value.get("engines") or ()}
        links = {link.get("name") or f"{link['source']}->{link['dest']}": link for link in value.get("links") or ()}
    except (AttributeError, KeyError, TypeError):
        raise CannotOperate("each engine needs an id, each link a source and a dest") from None
    return body | {
        "engines": body.get("engines", {}) | engines,
        "links": body.get("links", {}) | links,
        "draining": [id_ for id_ in body.get("draining", ()) if id_ not in engines],
    }


def _remove(body: TopologyBody, args: argparse.Namespace) -> TopologyBody:
    links = dict.fromkeys(id_ for id_ in args.ids if "->" in id_)
    engines = dict.fromkeys(id_ for id_ in args.ids if "->" not in id_)
    return body | {
        "engines": body.get("engines", {}) | engines,
        "links": body.get("links", {}) | links,
        "draining": [id_ for id_ in body.get("draining", ()) if id_ not in engines],
    }


EDITS: dict[str, Callable[[TopologyBody, argparse.Namespace], TopologyBody]] = {
    "add": _add,
    "drain": lambda body, args: drain(body, args.ids),
    "undrain": lambda body, args: undrain(body, args.ids),
    "remove": _remove,
}


def describe(topology: Topology, settings: Settings | None) -> Iterator[str]:
    """Yield a line for each engine and link: where it is, and whether the document says something of it."""
    engines = {engine.id: engine for engine in settings.engines} if settings else {}
    for id_, engine in (engines | topology.engines).items():
        notes = ["drains"] if id_ in topology.draining else []
        if id_ in topology.engines:
            notes.append("removed" if engine is None else "changed" if id_ in engines else "added")
        where = ""
        if engine is not None:
            where = f"  {engine.role}  {engine.model}  {engine.region}  {without_credentials(engine.url)}"
        yield f"{id_}{where}{_listed(notes)}"
    for id_ in topology.draining:
        if id_ not in engines | topology.engines:
            yield f"{id_}{_listed(['drains'])}"
    links = {link_name(link): link for link in settings.links} if settings else {}
    for name, link in (links | topology.links).items():
        notes = ["removed" if link is None else "changed" if name in links else "added"]
        yield f"{name}{_listed(notes if name in topology.links else [])}"


def _listed(notes: list[str]) -> str:
    return f"  ({', '.join(notes)})" if notes else ""
