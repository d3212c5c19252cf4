"""``pdd key``: the API keys of tenants. A key is shown once, when it is made; what is stored cannot be turned back."""

import argparse
import sys
import time

import msgspec

from gateway.auth.keys import KeyRecord, hash_key, make_key, parse_key
from gateway.auth.secrets import BadSecret, find_secret, read_secret
from gateway.auth.tenants import KEY_KIND, TENANT_KIND
from gateway.cli.writing import (
    CannotOperate,
    Command,
    add_change,
    add_place,
    announce,
    find_author,
    read_duration_s,
    read_settings,
    run_on_store,
)
from gateway.config.document_store import Document, DocumentStore

SECRET_ENV = "PDD_SECRET"
"""Where the secret is without a configuration that says it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands."""
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="create|revoke|list")
    create = verbs.add_parser("create", help="make a key and print it, once")
    create.add_argument("--tenant", required=True, metavar="ID", help="whose key it is")
    create.add_argument("--expires", type=read_duration_s, metavar="DURATION", help="like 12h or 90d (default: never)")
    create.add_argument("--note", default="", metavar="TEXT", help="for those who read the list")
    revoke = verbs.add_parser("revoke", help="refuse a key from now on")
    revoke.add_argument("id", metavar="ID", help="as `list` shows it; a whole key will do")
    listed = verbs.add_parser("list", help="list the keys, without what makes them keys")
    listed.add_argument("--tenant", metavar="ID", help="of this tenant only")
    for verb in (create, revoke, listed):
        add_place(verb)
    for verb in (create, revoke):
        add_change(verb)


def run(args: argparse.Namespace) -> int:
    """Run one subcommand; the exit status."""
    return run_on_store("key", args, COMMANDS[args.verb])


async def create_key(store: DocumentStore, args: argparse.Namespace) -> None:
    """Make a key. It alone is on stdout: ``KEY=$(pdd key create ...)`` takes it."""
    secret = find_key_secret(args)
    if await store.get(TENANT_KIND, args.tenant) is None:
        raise CannotOperate(f"tenant {args.tenant} does not exist: `pdd tenant add {args.tenant}` makes it")
    key, now_s = make_key(), int(time.time())
    record = KeyRecord(
        tenant=args.tenant,
        hash=hash_key(secret, key),
        created_s=now_s,
        expires_s=None if args.expires is None else now_s + args.expires,
        note=args.note,
    )
    document = await store.put(KEY_KIND, key.id, record, author=find_author(args), expected_version=0)
    try:
        await announce(store, document, args, sys.stderr)
    finally:
        # It is stored, so it must be shown, also where some process has not applied it yet.
        print(key)


async def revoke_key(store: DocumentStore, args: argparse.Namespace) -> None:
    """Refuse a key from now on; the record stays, for the list."""
    key = parse_key(args.id)
    key_id = args.id if key is None else key.id
    document = await store.get(KEY_KIND, key_id)
    if document is None:
        raise CannotOperate("there is no such key")
    record = read(document)
    if record is None:
        # What no gateway can read opens nothing.
        await announce(store, await store.delete(KEY_KIND, key_id, author=find_author(args)), args)
        return
    revoked = msgspec.structs.replace(record, revoked_s=record.revoked_s or int(time.time()))
    expected = document.version if args.expect_version is None else args.expect_version
    changed = await store.put(KEY_KIND, key_id, revoked, author=find_author(args), expected_version=expected)
    await announce(store, changed, args)


async def list_keys(store: DocumentStore, args: argparse.Namespace) -> None:
    """Print a line for each key."""
    now_s = time.time()
    for document in await store.all_of(KEY_KIND):
        record = read(document)
        if record is None:
            print(f"{document.name}  (cannot be read)")
        elif args.tenant in (None, record.tenant):
            expires = "never expires" if record.expires_s is None else f"expires {spell(record.expires_s)}"
            state = record.flaw(now_s) or "good"
            line = (document.name, record.tenant, state, f"made {spell(record.created_s)}", expires, record.note)
            print("  ".join(filter(None, line)))


def read(document: Document) -> KeyRecord | None:
    """Return a stored key; None: it cannot be read."""
    try:
        return msgspec.json.decode(document.body, type=KeyRecord)
    except msgspec.DecodeError:
        return None


def find_key_secret(args: argparse.Namespace) -> bytes:
    """Return the secret that the gateways have too. Raises CannotOperate and BadSettings."""
    settings = read_settings(args)
    try:
        secret = read_secret(SECRET_ENV, None) if settings is None else find_secret(settings.auth)
    except BadSecret as error:
        raise CannotOperate(f"{error}; or say --config FILE, which names the secret") from None
    if secret is None:
        raise CannotOperate("auth.secret_env: the configuration names no secret, so keys mean nothing to its gateways")
    return secret


def spell(at_s: int) -> str:
    """Return a moment in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at_s))


COMMANDS: dict[str, Command] = {
    "create": create_key,
    "revoke": revoke_key,
    "list": list_keys,
}
