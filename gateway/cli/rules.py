"""``pdd rules``: the live rule documents, read, checked, changed, compared, taken back and tried out."""

import argparse
import asyncio
import difflib
import os
import shlex
import tempfile
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from gateway.auth.tenants import TENANT_KIND
from gateway.cli.rehearse import rehearse
from gateway.cli.writing import (
    REPLY_TIMEOUT_S,
    CannotOperate,
    Command,
    add_change,
    add_place,
    announce,
    describe_moment,
    describe_refusal,
    find_author,
    find_url,
    find_wait_s,
    open_store,
    read_settings,
    read_value,
    run_change,
    run_on_store,
    to_yaml,
)
from gateway.config.document_store import Changes, Document, DocumentStore
from gateway.config.live import DocumentsRefused
from gateway.config.rulebook import RULES, RuleBook
from gateway.operator.rules import build_book, unsaved, with_change
from policies.rule_documents import DEFAULT, document_schema
from policies.rules import Rules


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands."""
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")

    def add(
        name: str, text: str, *, change: bool = False, file: str | None = None, alias: str | None = None
    ) -> argparse.ArgumentParser:
        verb = verbs.add_parser(name, help=text, description=text, aliases=[alias] if alias else [])
        verb.set_defaults(verb=name)
        if file is not None:
            verb.add_argument("file", type=Path, nargs=file or None, metavar="FILE", help="YAML or JSON; -: stdin")
        verb.add_argument("--tenant", default=DEFAULT, metavar="NAME", help="whose document (default: everybody's)")
        add_place(verb)
        if change:
            add_change(verb)
        if name in ("set", "edit"):
            verb.add_argument("--anyway", action="store_true", help="also for a tenant that does not exist yet")
        return verb

    get = add("get", "print a document")
    get.add_argument("--effective", action="store_true", help="with all that lies under it")
    add("list", "list the documents")
    add("set", "put a file in force", change=True, file="")
    add("delete", "delete a tenant's document, or the default one", change=True)
    add("edit", "change a document in $EDITOR", change=True)
    add("validate", "check a file, together with the documents that are there", file="", alias="check")
    diff = add("diff", "compare a file, or the version before the newest, with the newest", file="?")
    diff.add_argument("--version", type=int, metavar="N", help="compare this version with the newest")
    add("history", "list a document's versions")
    rollback = add("rollback", "put an earlier version in force again", change=True)
    rollback.add_argument("--to", type=int, metavar="N", help="(default: the version before the newest)")
    add("watch", "print every change and every refusal as it happens")
    add("schema", "print the JSON Schema of a document")
    test = add("test", "say which requests of a trace would get another plan under a file", file="")
    test.add_argument("--requests", type=Path, required=True, metavar="FILE", help="a trace, see policies/README.md")


def run(args: argparse.Namespace) -> int:
    """Run one subcommand; the exit status."""
    if args.verb == "schema":
        print(msgspec.json.format(msgspec.json.encode(document_schema())).decode())
        return 0
    if args.verb == "edit":
        return run_change("rules", lambda: edit_in_place(args))
    if args.verb == "validate" and find_url(args) is None:
        return run_change("rules", lambda: validate_alone(args))
    return run_on_store("rules", args, COMMANDS[args.verb], None if args.verb == "watch" else REPLY_TIMEOUT_S)


async def print_document(store: DocumentStore, args: argparse.Namespace) -> None:
    """Print a document, or what it comes to with the others."""
    if args.effective:
        book = build(args, await store.all_of(RULES))
        print(to_yaml(msgspec.to_builtins(book.of(args.tenant))), end="")
        return
    document = await find(store, args)
    print(f"# version {document.version}, by {document.author}, {describe_moment(document.at_ms)}")
    print(to_yaml(document.value), end="")


async def list_documents(store: DocumentStore, args: argparse.Namespace) -> None:
    """Print a line for each document."""
    for document in await store.all_of(RULES):
        print(f"{document.name}  version {document.version}, by {document.author}, {describe_moment(document.at_ms)}")


async def set_document(store: DocumentStore, args: argparse.Namespace) -> None:
    """Put a file in force."""
    await check_tenant(store, args)
    await change(store, args, read_value(args.file), args.expect_version)


async def delete_document(store: DocumentStore, args: argparse.Namespace) -> None:
    await change(store, args, None, args.expect_version)


async def check_tenant(store: DocumentStore, args: argparse.Namespace) -> None:
    """Refuse rules for nobody. Raises CannotOperate."""
    if args.tenant != DEFAULT and not args.anyway and await store.get(TENANT_KIND, args.tenant) is None:
        raise CannotOperate(
            f"tenant {args.tenant} does not exist: `pdd tenant add {args.tenant}` makes it; or say --anyway"
        )


async def change(store: DocumentStore, args: argparse.Namespace, value: Any, expected: int | None) -> None:
    """Check a new body together with all documents, and write it; None deletes. Raises CannotOperate, Conflict."""
    await check(store, args, value)
    author = find_author(args)
    if value is None:
        document = await store.delete(RULES, args.tenant, author=author, expected_version=expected)
    else:
        document = await store.put(RULES, args.tenant, value, author=author, expected_version=expected)
    await announce(store, document, args)


async def check(store: DocumentStore, args: argparse.Namespace, value: Any) -> RuleBook:
    """Return the rules as they would be with a new body. Raises CannotOperate."""
    return build(args, with_change(await store.all_of(RULES), args.tenant, value))


def build(args: argparse.Namespace, documents: Sequence[Document]) -> RuleBook:
    """Return the rules that documents come to. Raises CannotOperate."""
    try:
        return build_book(_base(args), documents)
    except DocumentsRefused as error:
        raise CannotOperate(f"refused: {error}") from None


async def edit_in_place(args: argparse.Namespace) -> None:
    """Let an editor change a document; the change holds only if nobody else changed it meanwhile."""
    async with open_store(args) as store, asyncio.timeout(REPLY_TIMEOUT_S):
        await check_tenant(store, args)
        document = await store.get(RULES, args.tenant)
    text = to_yaml(document.value) if document else "{}\n"
    path = await asyncio.to_thread(_write_temporary, text)
    editor = shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi")
    process = await asyncio.create_subprocess_exec(*editor, str(path))
    if await process.wait() != 0:
        raise CannotOperate(f"the editor failed; what it left is in {path}")
    value = await asyncio.to_thread(read_value, path)
    if document is not None and value == document.value:
        print("nothing was changed")
    else:
        expected = args.expect_version
        if expected is None:
            expected = document.version if document else 0
        async with open_store(args) as store, asyncio.timeout(REPLY_TIMEOUT_S + find_wait_s(args)):
            await change(store, args, value, expected)
    await asyncio.to_thread(path.unlink)


async def validate(store: DocumentStore, args: argparse.Namespace) -> None:
    """Check a file."""
    await check(store, args, read_value(args.file))
    print("valid")


async def validate_alone(args: argparse.Namespace) -> None:
    """Check a file where no Redis is named."""
    build(args, [unsaved(args.tenant, read_value(args.file))])
    print("valid; no Redis is named, so it was not checked with other documents")


async def compare(store: DocumentStore, args: argparse.Namespace) -> None:
    """Print what differs between two bodies."""
    newest = await store.get(RULES, args.tenant)
    now = to_yaml(newest.value) if newest else ""
    if args.file is not None:
        lines = _diff(now, to_yaml(read_value(args.file)), "stored", str(args.file))
    else:
        old = await find_version(store, args.tenant, args.version)
        lines = _diff(to_yaml(old.value) if old.body else "", now, f"version {old.version}", "stored")
    print("\n".join(lines) or "no difference")


async def print_history(store: DocumentStore, args: argparse.Namespace) -> None:
    """Print a line for each version, newest first."""
    for document in await store.history(RULES, args.tenant):
        end = "  deleted" if document.deleted else ""
        print(f"{document.version}  {describe_moment(document.at_ms)}  {document.author}{end}")


async def roll_back(store: DocumentStore, args: argparse.Namespace) -> None:
    """Put an earlier version in force again, as a new one."""
    history = await store.history(RULES, args.tenant, 1)
    old = await find_version(store, args.tenant, args.to)
    expected = history[0].version if args.expect_version is None and history else args.expect_version
    await change(store, args, old.value, expected)


async def watch(store: DocumentStore, args: argparse.Namespace) -> None:
    """Print changes and refusals until the process is stopped."""
    async for line in follow_changes(store, await store.read([RULES])):
        print(line, flush=True)


async def follow_changes(store: DocumentStore, seen: Changes, pause_s: float = 0.2) -> AsyncGenerator[str, None]:
    """Yield a line for each change of a rule document after ``seen``, and for each refusal."""
    told: set[str] = set()
    while True:
        async with asyncio.timeout(REPLY_TIMEOUT_S):
            news, living = await store.read([RULES], seen.revision, seen.epoch), await store.living()
        old = {one.key: one for one in seen.documents} if news.complete else {}
        for one in sorted(news.documents, key=lambda one: one.revision):
            if old.get(one.key) != one:
                verb = "deleted" if one.deleted else "set"
                yield f"{describe_moment(one.at_ms)}  {one.name} {verb}, version {one.version}, by {one.author}"
        refused = {describe_refusal(ack, one) for ack in living for one in ack.refusals if RULES in one.kinds}
        for line in sorted(refused - told):
            yield line
        seen, told = news, refused
        await asyncio.sleep(pause_s)


async def try_out(store: DocumentStore, args: argparse.Namespace) -> None:
    """Decide a trace's requests under the present rules and under a file's."""
    settings = read_settings(args)
    if settings is None:
        raise CannotOperate("--config FILE is needed: it says which engines and links there are")
    book = build(args, await store.all_of(RULES))
    new = await check(store, args, read_value(args.file))
    print("\n".join(rehearse(settings, args.requests, book, new)))


async def find(store: DocumentStore, args: argparse.Namespace) -> Document:
    """Return the newest version. Raises CannotOperate where there is none."""
    document = await store.get(RULES, args.tenant)
    if document is None:
        raise CannotOperate(f"there is no rule document {args.tenant}")
    return document


async def find_version(store: DocumentStore, name: str, version: int | None) -> Document:
    """Return a version of a document; None: the one before the newest. Raises CannotOperate."""
    history = await store.history(RULES, name)
    for place, document in enumerate(history):
        if document.version == version or (version is None and place == 1):
            return document
    wanted = "version before the newest" if version is None else f"version {version}"
    raise CannotOperate(f"the history of {name} holds no {wanted}")


def _base(args: argparse.Namespace) -> Rules:
    settings = read_settings(args)
    return settings.rules if settings else Rules()


def _write_temporary(text: str) -> Path:
    with tempfile.NamedTemporaryFile("w", prefix="pdd-rules-", suffix=".yaml", delete=False) as file:
        file.write(text)
    return Path(file.name)


def _diff(old: str, new: str, old_name: str, new_name: str) -> list[str]:
    return list(difflib.unified_diff(old.splitlines(), new.splitlines(), old_name, new_name, lineterm=""))


COMMANDS: dict[str, Command] = {
    "get": print_document,
    "list": list_documents,
    "set": set_document,
    "delete": delete_document,
    "validate": validate,
    "diff": compare,
    "history": print_history,
    "rollback": roll_back,
    "watch": watch,
    "test": try_out,
}
