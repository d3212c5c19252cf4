"""``pdd serve``: the gateway as a process."""

import argparse
import asyncio
import logging
import os
import sys
from pathlib import Path

import msgspec
import uvloop

from backends.lifetime import die_with_parent
from backends.serving import CannotListen, bind, parse_listen, serve
from gateway.api.edge import EdgeProtocol
from gateway.app import open_gateway
from gateway.settings import BadSettings, Settings, load_rules, load_settings
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
        host, port = parse_listen(args.listen or settings.listen)
        logging.basicConfig(
            level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr
        )
        logging.getLogger("httpx").setLevel(logging.WARNING)
        check_exposure(settings, host)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(settings, host, port, has_rules=args.rules is not None))
    except (BadSettings, ValueError) as error:
        print(f"pdd serve: {error}", file=sys.stderr)
        return 2
    except CannotListen as error:
        print(f"pdd serve: {error}", file=sys.stderr)
        return 1
    return 0


async def _serve(settings: Settings, host: str, port: int, has_rules: bool) -> None:
    listener = bind(host, port)
    async with open_gateway(settings, has_rules) as gateway:
        await serve(gateway.app, listener, on_stop=gateway.drain, grace_s=settings.drain_s, http=EdgeProtocol)
