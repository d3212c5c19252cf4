"""Whether KV can cross each link: what P and MD store, and one prompt that goes all the way.

Engines get some short prompts for that. What is learnt is told beside what the settings say.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial

from backends.errors import BackendError
from gateway.errors import reason_of
from gateway.fleet.canaries import NoWay
from gateway.fleet.canary import CanaryPath, CanaryUnread, CanaryUnseen, answers_alike, make_prompt
from gateway.fleet.kv_probe import MakePrompt, PairReading, read_pair
from gateway.fleet.kv_reading import StoreReading, is_same_size
from gateway.fleet.kv_sizes import describe_size
from gateway.fleet.links import Links
from gateway.fleet.pools import Instance, Pools
from gateway.text.model import ServedModel
from policies.types import Role

FindCrossing = Callable[[str, Instance, Instance], CanaryPath | None]


@dataclass(frozen=True, slots=True)
class LinkProbe:
    """What one model's KV does on one link. ``faults``: why it is of no use, empty where it is; ``notes``: what else
    an operator should know.

    ``prefill_stores``, ``main_stores``: what was read; None: nothing.
    """

    link: str
    model: str
    prefill: str | None
    main: str | None
    prefill_stores: StoreReading | None
    main_stores: StoreReading | None
    link_says: str
    faults: list[str]
    notes: list[str]

    def describe(self) -> list[str]:
        """Tell it in lines."""
        lines = [f"{self.link}, {self.model}:"]
        for who, seen in ((self.prefill, self.prefill_stores), (self.main, self.main_stores)):
            if who is not None:
                lines.append(f"  {who} stores: {seen.describe() if seen else 'nothing that was found'}")
        lines.append(f"  the link says: {self.link_says}")
        lines += [f"  {note}" for note in self.notes]
        lines += [f"  FAULT: {fault}" for fault in self.faults]
        return lines

    def as_dict(self) -> dict[str, object]:
        """Return it as JSON values."""
        return asdict(self)


async def probe_links(
    served: Mapping[str, ServedModel],
    pools: Pools,
    links: Links,
    find_crossing: FindCrossing,
    least_tokens: Callable[[str], int],
) -> list[LinkProbe]:
    """Probe each link for each model that has a P at its one end and an MD at the other."""
    found = []
    for link in sorted(links.all, key=lambda link: link.name):
        for model in served.values():
            if links.get(*link.route, model.name) is not link:
                continue
            sides = ((Role.P, link.source), (Role.MD, link.dest))
            ends = [_pick(pools, model.name, role, region) for role, region in sides]
            if all(configured for configured, _ in ends):
                prefill, main = (instance for _, instance in ends)
                make = partial(_make_prompt, model, least_tokens)
                found.append(await _probe(link.name, model.name, prefill, main, find_crossing, make))
    return found


def _pick(pools: Pools, model: str, role: Role, region: str) -> tuple[bool, Instance | None]:
    """Say whether a role is filled in a region, and give an instance that takes legs."""
    now_s = pools.clock()
    filled = [one for one in pools.of_model(model) if one.spec.role is role and one.spec.region == region]
    return bool(filled), next((one for one in filled if one.usable(now_s)), None)


def _make_prompt(model: ServedModel, least_tokens: Callable[[str], int], wished_tokens: int) -> list[int]:
    return make_prompt(model, least_tokens(model.name), wished_tokens)


async def _probe(
    link: str,
    model: str,
    prefill: Instance | None,
    main: Instance | None,
    find_crossing: FindCrossing,
    make: MakePrompt,
) -> LinkProbe:
    faults, notes = [], []
    read: PairReading | None = None
    try:
        if prefill is None or main is None:
            raise NoWay("no P or no MD is up")
        crossing = find_crossing(model, prefill, main)
        if crossing is None:
            raise NoWay("P and MD stand in one region")
        read = await read_pair(make, prefill, main, crossing)
        if read.failure is not None:
            notes.append(f"the stores were not read: {read.failure}")
        faults += read.contradictions() + (read.lost_salts() if crossing.is_salted else [])
        notes += _compare_size(read, crossing)
        if not faults:
            prompt = make(0)
            is_alike = await answers_alike(prompt, prefill, main, crossing)
            notes.append(f"KV of {len(prompt)} tokens has crossed, and {main.spec.id} went on behind it")
            if not is_alike:
                faults.append(f"{main.spec.id} gives other tokens than {prefill.spec.id}")
    except (CanaryUnread, CanaryUnseen) as error:
        faults.append(str(error))
    except (BackendError, TimeoutError, NoWay) as error:
        faults.append(f"nothing could be tried: {reason_of(error)}")
    return LinkProbe(
        link,
        model,
        prefill.spec.id if prefill else None,
        main.spec.id if main else None,
        read.prefill if read else None,
        read.main if read else None,
        read.terms.describe() if read else "-",
        faults,
        notes,
    )


def _compare_size(read: PairReading, crossing: CanaryPath) -> list[str]:
    if read.prefill is None or crossing.kv.has_groups:
        return []
    token_bytes, expected = read.prefill.bytes_of_token(read.terms.heads), crossing.kv_bytes_per_token
    if token_bytes is None or is_same_size(token_bytes, expected):
        return []
    return [describe_size(token_bytes, expected)]
