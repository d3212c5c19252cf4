"""``pdd wan``: a link between two regions whose rate, delay, stalls and cuts are under control."""

import argparse
import asyncio
import os
import sys

import uvloop

from backends.transport.lifetime import die_with_parent
from backends.transport.serving import CannotListen, bind, parse_listen, serve
from backends.transport.wan.control import make_control
from backends.transport.wan.link import WanLink
from backends.transport.wan.route import WanRoute


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument(
        "--route",
        action="append",
        required=True,
        metavar="LISTEN=TARGET",
        help="relay HOST:PORT to HOST:PORT; may be given several times: all routes share the link",
    )
    parser.add_argument("--rate-mbit", type=float, required=True, help="of each direction")
    parser.add_argument("--delay-ms", type=float, default=0.0, help="one way")
    parser.add_argument("--control", default="127.0.0.1:0", metavar="HOST:PORT", help="where the HTTP control listens")
    parser.add_argument("--die-with-parent", action="store_true", help="end when the starting process ends")


def run(args: argparse.Namespace) -> int:
    """Relay until told to stop; the result is the exit status."""
    if args.die_with_parent:
        die_with_parent(parent_pid=os.getppid())
    try:
        routes = [_parse_route(text) for text in args.route]
        host, port = parse_listen(args.control)
        if args.rate_mbit <= 0 or args.delay_ms < 0:
            raise ValueError("--rate-mbit must be positive and --delay-ms not negative")
    except ValueError as error:
        sys.stderr.write(f"pdd wan: {error}\n")
        return 2
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            runner.run(_serve(routes, args.rate_mbit, args.delay_ms, host, port))
        except CannotListen as error:
            sys.stderr.write(f"pdd wan: {error}\n")
            return 1
    return 0


async def _serve(routes: list[WanRoute], rate_mbit: float, delay_ms: float, host: str, port: int) -> None:
    listener = bind(host, port)
    async with WanLink(routes, rate_mbit=rate_mbit, delay_ms=delay_ms) as link:
        for route in link.stats().routes:
            sys.stdout.write(f"route {route.listen} -> {route.target}\n")
        await serve(make_control(link), listener, on_stop=lambda: None)


def _parse_route(text: str) -> WanRoute:
    listen, separator, target = text.partition("=")
    if not separator:
        raise ValueError(f"--route {text!r} is not LISTEN=TARGET")
    listen_host, listen_port = parse_listen(listen)
    target_host, target_port = parse_listen(target)
    return WanRoute(target_host, target_port, listen_host, listen_port)
