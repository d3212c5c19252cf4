"""``pdd bridge``: the process of a receiving region that pulls KV chunks from another region's store."""

import argparse
import asyncio
import ipaddress
import logging
import os
import socket
import sys
from dataclasses import dataclass, replace

import uvloop

from backends.kv.bridge.access import BridgeAccess, read_keys
from backends.kv.bridge.mover import Mover
from backends.kv.bridge.resp import StoreAddress, StoreTls, make_context
from backends.kv.bridge.server import make_app
from backends.kv.bridge.types import BridgeLimits
from backends.kv.bridge.workers import run_workers
from backends.transport.lifetime import die_with_parent
from backends.transport.serving import BadTls, CannotListen, ServedApp, Tls, bind, parse_listen, serve_sites

_MIB = 1 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    defaults = BridgeLimits()
    parser.add_argument(
        "--source",
        required=True,
        metavar="URL",
        help="the sending region's store, across the link; redis-cluster://HOST:PORT,HOST:PORT for a cluster",
    )
    parser.add_argument("--dest", required=True, metavar="URL", help="the receiving region's store, near by")
    for store in ("source", "dest"):
        parser.add_argument(
            f"--{store}-password-env",
            metavar="NAME",
            help=f"variable with the password of --{store}, if not in its URL",
        )
    parser.add_argument("--store-ca", metavar="FILE", help="authorities of rediss:// stores; default: the system's")
    parser.add_argument("--store-cert", metavar="FILE", help="certificate to show to rediss:// stores")
    parser.add_argument("--store-key", metavar="FILE", help="its private key")
    parser.add_argument("--listen", default="127.0.0.1:0", metavar="HOST:PORT", help="port 0: any free one")
    parser.add_argument(
        "--workers", type=int, default=1, metavar="N", help="processes, the others at the ports that follow"
    )
    parser.add_argument("--tls-cert", metavar="FILE", help="serve https with this certificate")
    parser.add_argument("--tls-key", metavar="FILE", help="its private key")
    parser.add_argument("--tls-client-ca", metavar="FILE", help="gateways must show a certificate of this authority")
    parser.add_argument("--key-env", metavar="NAME", help="variable with the key that gateways must show")
    parser.add_argument("--key-file", metavar="FILE", help="keys that gateways must show, a line NAME KEY each")
    parser.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="NAME",
        help="move this model's KV only; may stand several times",
    )
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


@dataclass(frozen=True, slots=True)
class _Plan:
    """What one process does."""

    source: StoreAddress
    destination: StoreAddress
    limits: BridgeLimits
    access: BridgeAccess
    tls: Tls | None


def run(args: argparse.Namespace) -> int:
    """Run the bridge until it is told to stop; the result is the exit status."""
    if args.die_with_parent:
        die_with_parent(parent_pid=os.getppid())
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        plan = _read_plan(args)
        host, port = parse_listen(args.listen)
        if not 1 <= args.workers <= 64:
            raise ValueError("--workers: from 1 to 64")
    except (ValueError, BadTls) as error:
        sys.stderr.write(f"pdd bridge: {error}\n")
        return 2
    if plan.access.is_open and not _is_loopback(host):
        log.warning("without --key-env or --key-file whoever reaches %s may use this bridge", args.listen)
    try:
        listeners = [bind(host, port + number if port else 0) for number in range(args.workers)]
    except CannotListen as error:
        sys.stderr.write(f"pdd bridge: {error}\n")
        return 1
    if len(listeners) == 1:
        return _serve_alone(plan, listeners[0])
    return run_workers(lambda number: _serve_alone(plan, listeners[number]), len(listeners))


def _read_plan(args: argparse.Namespace) -> _Plan:
    """What the options say, for one of the processes. Raises ValueError or BadTls."""
    files = StoreTls(args.store_ca, args.store_cert, args.store_key)
    source, destination = (
        replace(_with_password(StoreAddress.parse(url), variable), files=files)
        for url, variable in ((args.source, args.source_password_env), (args.dest, args.dest_password_env))
    )
    if source.tls or destination.tls:
        make_context(files)
    if (args.tls_cert is None) != (args.tls_key is None):
        raise ValueError("--tls-cert and --tls-key belong together")
    tls = Tls(args.tls_cert, args.tls_key, args.tls_client_ca) if args.tls_cert is not None else None
    if tls is not None:
        tls.check()
    limits = BridgeLimits(
        connections=args.connections,
        memory_bytes=args.memory_mib * _MIB // max(1, args.workers),
        small_bytes=args.small_mib * _MIB // max(1, args.workers),
        silence_s=args.silence_s,
        rate_cap_bytes_per_s=args.rate_mbit * 125_000 / max(1, args.workers) if args.rate_mbit else None,
    )
    return _Plan(
        source, destination, limits, BridgeAccess(read_keys(os.environ, args.key_env, args.key_file), args.model), tls
    )


def _with_password(address: StoreAddress, variable: str | None) -> StoreAddress:
    if variable is None:
        return address
    if address.password is not None:
        raise ValueError(f"the URL of the store {address} has a password, and {variable} is to hold one, too")
    if not os.environ.get(variable):
        raise ValueError(f"{variable}, which is to hold the password of the store {address}, is not set")
    return replace(address, password=os.environ[variable])


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _serve_alone(plan: _Plan, listener: socket.socket) -> int:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(plan, listener))
    return 0


async def _serve(plan: _Plan, listener: socket.socket) -> None:
    mover = Mover(plan.source, plan.destination, plan.limits)
    async with asyncio.TaskGroup() as tasks:
        moving = tasks.create_task(mover.run())
        site = ServedApp(make_app(mover, plan.access), listener, tls=plan.tls)
        await serve_sites(site, on_stop=lambda: mover.stop("the bridge is stopping"))
        moving.cancel()


log = logging.getLogger(__name__)
