"""``pdd probe``: what P's and MD's engines store, whether each link moves just that, and whether KV can cross it.

And which engines make other prompts of chats than the gateway does.
"""

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

    def show(seen: tuple[list[LinkProbe], dict[str, frozenset[str]]]) -> None:
        probes, differing = seen
        found.extend(probes)
        if args.json:
            otherwise = [{"instance": id_, "reads_otherwise": sorted(shapes)} for id_, shapes in differing.items()]
            print_json([*(probe.as_dict() for probe in probes), *otherwise])
        else:
            lines = [line for probe in probes for line in probe.describe()]
            lines = lines or ["no link has a P at its one end and an MD at the other"]
            lines += [f"{id_} makes other prompts of chats: {', '.join(sorted(s))}" for id_, s in differing.items()]
            print("\n".join(lines))

    status = run_to_end("probe", lambda: _probe(load_settings(args.config)), show)
    return status or int(any(probe.faults for probe in found))


async def _probe(settings: Settings) -> tuple[list[LinkProbe], dict[str, frozenset[str]]]:
    async with open_observer(settings) as seen:
        gateway = seen.gateway
        probes = await probe_links(
            gateway.served, gateway.pools, gateway.links, gateway.find_crossing, gateway.canary_tokens
        )
        await gateway.readings.ask_all()
        differing = {id_: found for name in gateway.served for id_, found in gateway.readings.differing(name).items()}
        return probes, differing
