"""``pdd serve``: the gateway as a process."""

import argparse
import asyncio
import functools
import os
import sys
from pathlib import Path

import msgspec
import uvloop

from backends.lifetime import die_with_parent
from backends.serving import BadTls, CannotListen, Site, Tls, bind, parse_listen, serve_sites
from gateway.api.edge import Edge, EdgeProtocol
from gateway.app import open_gateway
from gateway.settings import BadSettings, Settings, find_proxies, load_rules, load_settings
from gateway.telemetry.logs import start_logging
from gateway.tenancy import check_exposure


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
    parser.add_argument("--die-with-parent", action="store_true", help="end when the starting process ends")


def run(args: argparse.Namespace) -> int:
    """Serve until a signal; the exit status."""
    if args.die_with_parent:
        die_with_parent(parent_pid=os.getppid())
    try:
        settings = load_settings(args.config)
        if args.rules is not None:
            settings = msgspec.structs.replace(settings, rules=load_rules(args.rules))
        if args.listen is not None:
            settings = msgspec.structs.replace(settings, listen=args.listen)
        start_logging(settings.log_level, sys.stderr)
        check_exposure(settings, parse_listen(settings.listen)[0])
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(settings, has_rules=args.rules is not None))
    except (BadSettings, ValueError) as error:
        print(f"pdd serve: {error}", file=sys.stderr)
        return 2
    except CannotListen as error:
        print(f"pdd serve: {error}", file=sys.stderr)
        return 1
    return 0


async def _serve(settings: Settings, has_rules: bool) -> None:
    tls = read_tls(settings)
    limits = settings.limits
    edge = Edge(limits.head_timeout_s, limits.max_connections, find_proxies(settings))
    protocol = functools.partial(EdgeProtocol, edge=edge)
    listener = bind(*parse_listen(settings.listen))
    async with open_gateway(settings, has_rules) as gateway:
        site = Site(gateway.app, listener, protocol, tls, limits.keep_alive_s)
        await serve_sites(site, on_stop=gateway.drain, grace_s=settings.drain_s)


def read_tls(settings: Settings) -> Tls | None:
    """Return the files of TLS, which can be used; None: there are none. Raises BadSettings."""
    if settings.tls is None:
        return None
    tls = Tls(settings.tls.cert_file, settings.tls.key_file, settings.tls.client_ca_file)
    try:
        tls.check()
    except BadTls as error:
        raise BadSettings(f"tls.{error}") from None
    return tls
