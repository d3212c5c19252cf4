"""``pdd tenant``: who may ask at all."""

import argparse
import re
from typing import Any

import msgspec

from gateway.auth.tenants import TENANT_KIND, TenantRecord
from gateway.cli.writing import (
    CannotOperate,
    Command,
    add_change,
    add_place,
    announce,
    find_author,
    run_on_store,
)
from gateway.config.document_store import Document, DocumentStore
from policies.rule_documents import DEFAULT

TENANT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@:-]{0,99}")
"""Stands in logs, labels, headers of tables and names of documents."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands."""
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="add|list|disable|enable")
    for name, text in (
        ("add", "make a tenant known"),
        ("list", "list the tenants"),
        ("disable", "refuse all keys of a tenant until it is enabled again"),
        ("enable", "accept a disabled tenant's keys again"),
    ):
        verb = verbs.add_parser(name, help=text, description=text)
        if name != "list":
            verb.add_argument("tenant", metavar="ID", help="the tenant; its rules are the document of the same name")
            add_change(verb)
        if name == "add":
            verb.add_argument("--note", default="", metavar="TEXT", help="for those who read the list")
        add_place(verb)


def run(args: argparse.Namespace) -> int:
    """Run one subcommand; the exit status."""
    return run_on_store("tenant", args, COMMANDS[args.verb])


async def add_tenant(store: DocumentStore, args: argparse.Namespace) -> None:
    """Make a tenant known that was not."""
    if TENANT_NAME.fullmatch(args.tenant) is None or args.tenant == DEFAULT:
        raise CannotOperate(
            f"{args.tenant!r} is no tenant's name: letters, digits and ._@:- (100 at most), and not `{DEFAULT}`, whose "
            "rules are everybody's"
        )
    if await store.get(TENANT_KIND, args.tenant) is not None:
        raise CannotOperate(f"tenant {args.tenant} exists")
    await put(store, args, TenantRecord(note=args.note), 0 if args.expect_version is None else args.expect_version)


async def list_tenants(store: DocumentStore, args: argparse.Namespace) -> None:
    """Print a line for each tenant."""
    for document in await store.all_of(TENANT_KIND):
        record = read(document)
        state = "disabled" if record.disabled else "enabled"
        print("  ".join(filter(None, (document.name, state, f"version {document.version}", record.note))))


async def set_disabled(store: DocumentStore, args: argparse.Namespace, disabled: bool) -> None:
    document = await store.get(TENANT_KIND, args.tenant)
    if document is None:
        raise CannotOperate(f"tenant {args.tenant} does not exist")
    record = msgspec.structs.replace(read(document), disabled=disabled)
    await put(store, args, record, document.version if args.expect_version is None else args.expect_version)


async def put(store: DocumentStore, args: argparse.Namespace, record: Any, expected: int) -> None:
    """Write a record and tell of it."""
    author = find_author(args)
    document = await store.put(TENANT_KIND, args.tenant, record, author=author, expected_version=expected)
    await announce(store, document, args)


def read(document: Document) -> TenantRecord:
    """Return a stored tenant; one that cannot be read is disabled, as it is for the gateways."""
    try:
        return msgspec.json.decode(document.body, type=TenantRecord)
    except msgspec.DecodeError:
        return TenantRecord(disabled=True, note="(cannot be read)")


COMMANDS: dict[str, Command] = {
    "add": add_tenant,
    "list": list_tenants,
    "disable": lambda store, args: set_disabled(store, args, True),
    "enable": lambda store, args: set_disabled(store, args, False),
}
