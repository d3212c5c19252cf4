"""``pdd``: finds the command and loads only what it needs, so that ``pdd serve`` never sees torch."""

import argparse
import importlib
import sys
from typing import Any

from gateway.version import VERSION

COMMANDS: dict[str, tuple[str, str]] = {
    "serve": ("gateway.cli.serve", "run the gateway"),
    "top": ("gateway.cli.top", "watch a gateway's fleet, lines and requests in the terminal"),
    "chat": ("gateway.cli.chat", "ask a gateway, and see who made each token of the answer"),
    "explain": ("gateway.cli.explain", "show what the gateway would do with a request, and why"),
    "index": ("gateway.cli.index", "show what the prefix index knows of the engines' caches"),
    "rules": ("gateway.cli.rules", "read, check, change and take back the live rules"),
    "pool": ("gateway.cli.pool", "add, drain and remove engines and links while gateways run"),
    "tenant": ("gateway.cli.tenant", "add, list, disable and enable tenants"),
    "key": ("gateway.cli.key", "create, revoke and list the API keys of tenants"),
    "audit": ("gateway.cli.audit", "show who changed rules, engines, tenants and keys, and when"),
    "usage": ("gateway.cli.usage", "show what tenants have used"),
    "probe": ("gateway.cli.probe", "show what engines store, and whether KV can cross each link"),
    "profile": ("gateway.cli.profile", "measure an engine's prefill curve and find its valleys"),
    "trace": ("gateway.cli.trace", "keep anonymous lines of requests, and export them for simulate and plan"),
    "simulate": ("gateway.cli.simulate", "tell what a fleet would do with some traffic, in one region or two"),
    "plan": ("gateway.cli.plan", "find the fleet for some traffic, and tell whether a second region pays"),
    "demo": ("gateway.demo.command", "run two regions on this machine and show what the relay does"),
    "bridge": ("backends.kv.bridge.command", "run the KV bridge of a receiving region"),
    "engine": ("backends.engines.reference.command", "run the reference engine"),
    "wan": ("backends.transport.wan.command", "run a shaped link between two regions"),
}


def main(argv: list[str] | None = None) -> int:
    """Run one command; its exit status."""
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["--version"]:
        print(f"pdd {VERSION}")
        return 0
    if not argv or argv[0] not in COMMANDS:
        parser = argparse.ArgumentParser(prog="pdd", formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.description = "\n".join(f"  {name:8} {text}" for name, (_, text) in COMMANDS.items())
        parser.add_argument("command", choices=list(COMMANDS), help="`pdd COMMAND --help` tells its options")
        parser.parse_args(argv[:1])
        return 2
    name = argv[0]
    module_name, text = COMMANDS[name]
    command: Any = importlib.import_module(module_name)
    parser = argparse.ArgumentParser(prog=f"pdd {name}", description=text)
    command.add_arguments(parser)
    return int(command.run(parser.parse_args(argv[1:])))


if __name__ == "__main__":
    sys.exit(main())
