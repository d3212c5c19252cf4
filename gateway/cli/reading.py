"""What the commands that look at a deployment share: its pieces, opened to read, and a request made ready."""

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import uvloop

from gateway.app import Gateway, open_redis
from gateway.auth.tenants import TENANT_KIND
from gateway.config.document_store import DocumentStore
from gateway.config.fleet_settings import BadSettings
from gateway.config.live import DocumentsRefused
from gateway.config.rulebook import RULES
from gateway.config.settings import Settings, find_redis
from gateway.errors import GatewayError, reason_of
from gateway.fleet.topology import TOPOLOGY
from gateway.index.shared import RedisIndex
from gateway.operator.explain import TENANT
from gateway.redis.client import AWAY, SharedRedis
from gateway.tenancy import open_index

T = TypeVar("T")
READ_TIMEOUT_S = 5.0
LOOKS, LOOK_PAUSE_S = 250, 0.02
"""How long the index may take until all it can know of is read: five seconds."""


class CannotInspect(Exception):
    """There is nothing to show; the message is for the user."""


def add_config(parser: argparse.ArgumentParser) -> None:
    """Declare the options that all these commands have."""
    parser.add_argument(
        "--config", type=Path, default=Path("gateway.yaml"), metavar="FILE", help="the gateway's (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def add_tenant(parser: argparse.ArgumentParser) -> None:
    """Declare whose request it is."""
    parser.add_argument(
        "--tenant",
        default=TENANT,
        metavar="ID",
        help="whose request it is: the tenant's rules and cache salt count (default: %(default)s)",
    )


def run_to_end(name: str, work: Callable[[], Coroutine[None, None, T]], show: Callable[[T], None]) -> int:
    """Run the coroutine that ``work`` makes, show its result, or say what went wrong; the exit status."""
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            found = runner.run(work())
        show(found)
    except BadSettings as error:
        print(f"pdd {name}: {error}", file=sys.stderr)
        return 2
    except GatewayError as error:
        print(f"pdd {name}: {f'{error.param}: ' if error.param else ''}{error.message}", file=sys.stderr)
        return 1
    except (CannotInspect, *AWAY) as error:
        print(f"pdd {name}: {error}", file=sys.stderr)
        return 1
    return 0


@dataclass(frozen=True, slots=True)
class Observer:
    """A gateway that does not serve, and the index that it reads."""

    gateway: Gateway
    index: RedisIndex


@asynccontextmanager
async def open_observer(settings: Settings) -> AsyncIterator[Observer]:
    """Open a gateway's pieces without serving: engines and bridges are asked how they are, and the index is read.

    Where no Redis is named there is no shared index to read; then the engines' events are followed here, into a private
    one. Raises BadSettings and CannotInspect.
    """
    async with open_redis(settings) as redis:
        index = open_index(settings, redis, follows_engines=find_redis(settings) is None)
        gateway = await asyncio.to_thread(Gateway, settings, index, redis)
        await _read_documents(gateway, redis)
        async with gateway.observing():
            await _settle(index)
            if not index.caught_up:
                raise CannotInspect("redis_url: the index could not be read from there in time")
            yield Observer(gateway, index)


async def _read_documents(gateway: Gateway, redis: SharedRedis) -> None:
    """Put the live rules and topology in force. Raises CannotInspect."""
    try:
        store = DocumentStore(redis.client("documents", READ_TIMEOUT_S))
        async with store.redis.limit():
            gateway.topology.apply(await store.all_of(TOPOLOGY))
            gateway.rulebook.apply(await store.all_of(RULES))
            if gateway.tenancy.book is not None:
                gateway.tenancy.book.apply(await store.all_of(TENANT_KIND))
    except DocumentsRefused as error:
        raise CannotInspect(f"the live documents do not fit: {error}") from None
    except AWAY as error:
        raise CannotInspect(f"redis_url: the index could not be read from there: {reason_of(error)}") from None


async def _settle(index: RedisIndex) -> None:
    """Wait until everything is known, for a bounded time: an engine that nobody follows stays unknown."""
    for _ in range(LOOKS):
        known = all(instance.known for instance in index.stats().instances.values())
        if known and index.caught_up:
            return
        await asyncio.sleep(LOOK_PAUSE_S)


def read_file(path: Path) -> bytes:
    """Return a file's bytes. Raises CannotInspect."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise CannotInspect(f"cannot read {path}: {error.strerror}") from None


def print_json(value: Any) -> None:
    print(msgspec.json.format(msgspec.json.encode(value)).decode())
