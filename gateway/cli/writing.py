"""What the commands that change live documents share: where Redis is, who changes, and who has applied it."""

import argparse
import asyncio
import getpass
import os
import re
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TextIO

import uvloop
import yaml

from gateway.config.document_store import Ack, BadDocument, Conflict, Document, DocumentStore, Refusal
from gateway.config.fleet_settings import BadSettings
from gateway.config.settings import Settings, find_redis, load_settings, read_yaml
from gateway.redis.client import AWAY, SharedRedis

Command = Callable[[DocumentStore, argparse.Namespace], Awaitable[None]]

REPLY_TIMEOUT_S = 10.0
WAIT_S = 10.0
LOOK_PAUSE_S = 0.02


class CannotOperate(Exception):
    """Nothing was changed; the message is for the user."""


class NotApplied(Exception):
    """The change is stored, and some process has not applied it; the message is for the user."""


def add_place(parser: argparse.ArgumentParser) -> None:
    """Declare where Redis is."""
    parser.add_argument("--redis", metavar="URL", help="(default: REDIS_URL, or the configuration's redis_url)")
    parser.add_argument("--config", type=Path, metavar="FILE", help="the gateway's configuration")


def add_change(parser: argparse.ArgumentParser) -> None:
    """Declare how a change is made."""
    parser.add_argument(
        "--expect-version", type=int, metavar="N", help="change only this version; 0: only if there is none"
    )
    parser.add_argument("--author", default=None, metavar="NAME", help="for the history (default: this user)")
    parser.add_argument(
        "--wait",
        type=float,
        nargs="?",
        const=WAIT_S,
        metavar="SECONDS",
        help="how long until every live gateway process has applied it, or say which has not; 0: not at all (default: "
        "%(const)g s)",
    )


def find_author(args: argparse.Namespace) -> str:
    """Say who changes."""
    if args.author:
        return str(args.author)
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid-{os.getuid()}"


def read_settings(args: argparse.Namespace) -> Settings | None:
    """Return the configuration if one is named. Raises BadSettings."""
    return None if args.config is None else load_settings(args.config)


def find_url(args: argparse.Namespace) -> str | None:
    """Say where Redis is; None: nobody says. Raises BadSettings."""
    settings = read_settings(args)
    return args.redis or (find_redis(settings) if settings else os.environ.get("REDIS_URL")) or None


@asynccontextmanager
async def open_store(args: argparse.Namespace) -> AsyncIterator[DocumentStore]:
    """Reach the documents that the options name. Raises CannotOperate and BadSettings."""
    url = find_url(args)
    if url is None:
        raise CannotOperate("say where Redis is: --redis URL, REDIS_URL, or --config FILE with a redis_url")
    try:
        redis = SharedRedis(url)
    except ValueError as error:
        raise CannotOperate(f"not a Redis URL: {error}") from None
    async with redis:
        yield DocumentStore(redis.client("documents", REPLY_TIMEOUT_S))


def read_value(path: Path) -> Any:
    """Read a YAML or JSON file; ``-`` is the standard input. Raises BadSettings."""
    return read_yaml(Path("/dev/stdin") if str(path) == "-" else path)


def to_yaml(value: Any) -> str:
    """Write a value as a file that ``read_value`` takes."""
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True)


def find_wait_s(args: argparse.Namespace) -> float:
    """Say how long a change is waited for."""
    wait_s: float | None = getattr(args, "wait", None)
    return WAIT_S if wait_s is None else wait_s


async def announce(
    store: DocumentStore, document: Document, args: argparse.Namespace, out: TextIO | None = None
) -> None:
    """Tell of a change (on ``out``, else on stdout), and wait for the processes that live. Raises NotApplied."""
    verb = "deleted" if document.deleted else "set"
    lines = [f"{document.kind} {document.name} {verb}: version {document.version}, revision {document.revision}"]
    behind: list[str] = []
    if args.wait != 0:
        applied, behind = await wait_applied(store, document, find_wait_s(args))
        lines += [f"applied by {describe_process(ack)}" for ack in applied]
        if args.wait and not applied and not behind:
            lines.append("no gateway process is running")
    print("\n".join(lines), file=out)
    if behind:
        raise NotApplied("\n".join(behind))


async def wait_applied(store: DocumentStore, document: Document, within_s: float) -> tuple[list[Ack], list[str]]:
    """Wait until every live process has applied a document; those that have, and what is wrong with the others."""
    end_s = asyncio.get_running_loop().time() + within_s
    while True:
        epoch = (await store.read(())).epoch
        living = await store.living()
        applied = [ack for ack in living if ack.epoch == epoch and ack.revision >= document.revision]
        refused = {
            ack.process: describe_refusal(ack, refusal)
            for ack in applied
            for refusal in ack.refusals
            if document.kind in refusal.kinds
        }
        late = [ack for ack in living if ack not in applied]
        if not late or asyncio.get_running_loop().time() >= end_s:
            behind = [f"not applied by {describe_process(ack)}: it is at revision {ack.revision}" for ack in late]
            return [ack for ack in applied if ack.process not in refused], [*refused.values(), *behind]
        await asyncio.sleep(LOOK_PAUSE_S)


def describe_moment(at_ms: int) -> str:
    """Write a time, given in Unix milliseconds, as it is here."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_ms / 1000))


def describe_process(ack: Ack) -> str:
    """Name a gateway process."""
    return f"process {ack.pid} on {ack.host}"


def describe_refusal(ack: Ack, refusal: Refusal) -> str:
    """Say what a gateway process refused, and why."""
    return f"refused by {describe_process(ack)}: {refusal.name}: {refusal.reason}"


def run_on_store(name: str, args: argparse.Namespace, command: Command, limit_s: float | None = REPLY_TIMEOUT_S) -> int:
    """Run a command on the documents; the exit status. ``limit_s``: for how long, beside ``--wait``; None: any time."""

    async def work() -> None:
        async with open_store(args) as store:
            async with asyncio.timeout(limit_s and limit_s + find_wait_s(args)):
                await command(store, args)

    return run_change(name, work)


def run_change(name: str, work: Callable[[], Coroutine[None, None, None]]) -> int:
    """Run the coroutine that ``work`` makes, or say what went wrong; the exit status."""
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(work())
    except KeyboardInterrupt:
        return 130
    except (BadSettings, BadDocument) as error:
        print(f"pdd {name}: {error}", file=sys.stderr)
        return 2
    except (CannotOperate, Conflict, NotApplied, OSError) as error:
        print(f"pdd {name}: {str(error) or 'Redis does not answer in time'}", file=sys.stderr)
        return 1
    except AWAY as error:
        print(f"pdd {name}: Redis (--redis, REDIS_URL or redis_url): {error}", file=sys.stderr)
        return 1
    return 0


UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION = re.compile(r"([1-9][0-9]{0,8})([smhd])")


def read_duration_s(text: str) -> int:
    """Return the seconds of a duration, as an argument's type. Raises ArgumentTypeError."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration like 90s, 30m, 12h or 7d")
    return int(match[1]) * UNITS_S[match[2]]
