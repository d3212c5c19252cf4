"""``pdd probe``: what P's and MD's engines store, whether each link moves just that, and whether KV can cross it."""

import argparse

from gateway.cli.reading import add_config, open_observer, print_json, run_to_end
from gateway.config.settings import Settings, load_settings
from gateway.operator.probe import LinkProbe, probe_links


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    add_config(parser)


def run(args: argparse.Namespace) -> int:
    """Probe all links; 0 where KV can cross all of them."""
    found: list[LinkProbe] = []

    def show(probes: list[LinkProbe]) -> None:
        found.extend(probes)
        if args.json:
            print_json([probe.as_dict() for probe in probes])
        else:
            lines = [line for probe in probes for line in probe.describe()]
            print("\n".join(lines or ["no link has a P at its one end and an MD at the other"]))

    status = run_to_end("probe", lambda: _probe(load_settings(args.config)), show)
    return status or int(any(probe.faults for probe in found))


async def _probe(settings: Settings) -> list[LinkProbe]:
    async with open_observer(settings) as seen:
        gateway = seen.gateway
        return await probe_links(
            gateway.served, gateway.pools, gateway.links, gateway.find_crossing, gateway.canary_tokens
        )
