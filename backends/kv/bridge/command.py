"""``pdd bridge``: the process of a receiving region that pulls KV chunks from another region's store."""

import argparse
import asyncio
import logging
import os
import sys

import uvloop

from backends.kv.bridge.mover import Mover
from backends.kv.bridge.resp import StoreAddress
from backends.kv.bridge.server import make_app
from backends.kv.bridge.types import BridgeLimits
from backends.transport.lifetime import die_with_parent
from backends.transport.serving import CannotListen, bind, parse_listen, serve

_MIB = 1 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    defaults = BridgeLimits()
    parser.add_argument("--source", required=True, metavar="URL", help="the sending region's store, across the link")
    parser.add_argument("--dest", required=True, metavar="URL", help="the receiving region's store, near by")
    parser.add_argument("--listen", default="127.0.0.1:0", metavar="HOST:PORT", help="port 0: any free one")
    parser.add_argument("--connections", type=int, default=defaults.connections, help="connections for chunks")
    parser.add_argument("--memory-mib", type=int, default=defaults.memory_bytes // _MIB, help="chunks held at once")
    parser.add_argument(
        "--small-mib", type=int, default=defaults.small_bytes // _MIB, help="transfers up to this size go first"
    )
    parser.add_argument(
        "--silence-s", type=float, default=defaults.silence_s, help="a silent link is taken for broken after this"
    )
    parser.add_argument("--rate-mbit", type=float, default=None, help="aim at no more than this rate")
    parser.add_argument("--die-with-parent", action="store_true", help="end when the starting process ends")


def run(args: argparse.Namespace) -> int:
    """Run the bridge until it is told to stop; the result is the exit status."""
    if args.die_with_parent:
        die_with_parent(parent_pid=os.getppid())
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    limits = BridgeLimits(
        connections=args.connections,
        memory_bytes=args.memory_mib * _MIB,
        small_bytes=args.small_mib * _MIB,
        silence_s=args.silence_s,
        rate_cap_bytes_per_s=args.rate_mbit * 125_000 if args.rate_mbit else None,
    )
    try:
        source, destination = StoreAddress.parse(args.source), StoreAddress.parse(args.dest)
        host, port = parse_listen(args.listen)
    except ValueError as error:
        sys.stderr.write(f"pdd bridge: {error}\n")
        return 2
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            runner.run(_serve(source, destination, limits, host, port))
        except CannotListen as error:
            sys.stderr.write(f"pdd bridge: {error}\n")
            return 1
    return 0


async def _serve(source: StoreAddress, destination: StoreAddress, limits: BridgeLimits, host: str, port: int) -> None:
    listener = bind(host, port)
    mover = Mover(source, destination, limits)
    async with asyncio.TaskGroup() as tasks:
        moving = tasks.create_task(mover.run())
        await serve(make_app(mover), listener, on_stop=lambda: mover.stop("the bridge is stopping"))
        moving.cancel()
