"""``pdd serve``: the gateway as a process."""

import argparse
import asyncio
import contextlib
import functools
import gc
import logging
import os
import resource
import signal
import socket
import sys
from pathlib import Path

import msgspec
import uvloop
from starlette.types import ASGIApp

from backends.transport.lifetime import die_with_parent
from backends.transport.serving import CannotListen, ServedApp, bind, parse_listen, serve_sites
from gateway.app import open_gateway
from gateway.auth.exposure import check_exposure, read_tls
from gateway.cli.workers import Worker, share_settings, supervise
from gateway.config.fleet_settings import BadSettings
from gateway.config.settings import Settings, find_proxies, load_rules, load_settings
from gateway.http.doors import Doors, bound_by_descriptors
from gateway.http.edge import NO_ROOM, Edge, EdgeProtocol, spell_refusal
from gateway.telemetry.logs import start_logging
from gateway.telemetry.siblings import Siblings

log = logging.getLogger(__name__)

YOUNG_OBJECTS = 10_000
"""So many new ones are looked at together; those of a few requests."""

ADMIN_CONNECTIONS = 100
"""Of the operator's own listener, which nobody can fill from the other one."""
MOST_WORKERS = 256


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("--config", required=True, type=Path, metavar="FILE", help="YAML file, see the settings table")
    parser.add_argument(
        "--rules",
        type=Path,
        metavar="FILE",
        help="rules instead of the file's own, which also hold while Redis was not reached yet",
    )
    parser.add_argument("--listen", metavar="HOST:PORT", help="instead of the file's; port 0: any free one")
    parser.add_argument("--workers", type=int, metavar="N", help="processes that share the address, one core each")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--die-with-parent", action="store_true", help="end when the starting process ends")


def run(args: argparse.Namespace) -> int:
    """Serve until a signal; the exit status."""
    worker = msgspec.json.decode(args.worker, type=Worker) if args.worker else None
    if worker is not None:
        die_with_parent(signal.SIGTERM, parent_pid=worker.parent_pid)
    elif args.die_with_parent:
        die_with_parent(parent_pid=os.getppid())
    try:
        settings = read_settings(args)
        start_logging(settings.log_level, sys.stderr)
        if worker is None:
            check_exposure(settings, parse_listen(settings.listen)[0])
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            if worker is None and settings.workers > 1:
                return runner.run(supervise(settings, spell_options(args, settings)))
            runner.run(_serve(settings, worker, has_rules=args.rules is not None))
    except (BadSettings, ValueError) as error:
        print(f"pdd serve: {error}", file=sys.stderr)
        return 2
    except CannotListen as error:
        print(f"pdd serve: {error}", file=sys.stderr)
        return 1
    return 0


def read_settings(args: argparse.Namespace) -> Settings:
    """Return the file's settings, with what the command line has instead. Raises BadSettings or ValueError."""
    settings = load_settings(args.config)
    if args.rules is not None:
        settings = msgspec.structs.replace(settings, rules=load_rules(args.rules))
    if args.listen is not None:
        settings = msgspec.structs.replace(settings, listen=args.listen)
    if args.workers is not None:
        if not 1 <= args.workers <= MOST_WORKERS:
            raise ValueError(f"--workers: from 1 to {MOST_WORKERS}")
        settings = msgspec.structs.replace(settings, workers=args.workers)
    return settings


def spell_options(args: argparse.Namespace, settings: Settings) -> list[str]:
    """Return the command line of the workers."""
    options = ["--config", str(args.config), "--listen", settings.listen, "--workers", str(settings.workers)]
    return options if args.rules is None else [*options, "--rules", str(args.rules)]


def allow_connections() -> None:
    """Let the process hold as many connections as the system allows it; shells commonly allow a thousand."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def spare_collector() -> None:
    """Have the garbage collector look less often, and at less: what lives now lives for good.

    A look at all of it would hold up every stream, for a tenth of a second or more.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS)


def open_listeners(settings: Settings, worker: Worker | None) -> tuple[socket.socket, socket.socket | None]:
    """Listen for clients and for operators, or take over what the supervisor has opened. Raises CannotListen."""
    if worker is not None:
        return socket.socket(fileno=worker.listener), socket.socket(fileno=worker.admin) if worker.admin else None
    admin = settings.admin.listen
    return bind(*parse_listen(settings.listen)), bind(*parse_listen(admin)) if admin else None


async def _serve(settings: Settings, worker: Worker | None, has_rules: bool) -> None:
    if worker is not None:
        settings = share_settings(settings)
    tls, limits = read_tls(settings), settings.limits
    allow_connections()
    most, trusted = bound_by_descriptors(limits.max_connections), find_proxies(settings)
    if most < limits.max_connections:
        log.warning("limits.max_connections: %d, as this process may have no more descriptors", most)

    def site(app: ASGIApp, listener: socket.socket, label: str, most: int) -> ServedApp:
        doors = Doors(most, trusted, spell_refusal(NO_ROOM))
        edge = Edge(limits.head_timeout_s, trusted, doors)
        http = functools.partial(EdgeProtocol, edge=edge)
        return ServedApp(app, listener, http, tls, limits.keep_alive_s, label, doors, limits.head_timeout_s)

    listener, admin = open_listeners(settings, worker)
    siblings = Siblings(Path(worker.folder), worker.number, settings.workers) if worker is not None else None
    who = f"worker {worker.number} " if worker is not None else ""
    async with open_gateway(settings, has_rules, siblings) as gateway:
        beside = [site(gateway.admin_app, admin, f"{who}admin on", ADMIN_CONNECTIONS)] if admin is not None else []
        main = site(gateway.app, listener, f"{who}listening on", most)
        spare_collector()
        await serve_sites(main, *beside, on_stop=gateway.drain, on_cut=gateway.cut, grace_s=settings.drain_s)
