"""The ways to build a fleet of two kinds of chips that are compared with each other, and their sizes."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, get_args

import msgspec

from policies.rules import Rules
from policies.simulator.closed_form import RLD_SHARE, ChipPair, Workload, fleet_rate, needs
from policies.simulator.engine_model import EngineModel
from policies.simulator.fleet import Fleet, Member, WanLine
from policies.types import Role

FleetKind = Literal["same-dc-homogeneous", "same-dc-heterogeneous", "naive-cross-dc", "pdd"]
TOPOLOGIES: tuple[FleetKind, ...] = get_args(FleetKind)
SPLIT = ("naive-cross-dc", "pdd")
"""Those over two regions."""
NEAR, FAR = "a", "b"
"""Regions of P and RLD, and of MD where it stands elsewhere."""


@dataclass(frozen=True, slots=True)
class FleetParts:
    """What fleets are made of."""

    near: EngineModel
    """A's chips as P."""
    relay: EngineModel
    """A's chips as RLD, and as MD where all is built of A."""
    far: EngineModel
    """B's chips as MD."""
    line: WanLine
    kv_bytes_per_token: int

    @property
    def pair(self) -> ChipPair:
        """The same for the closed form."""
        line = self.line
        return ChipPair(self.near, self.relay, self.far, line.rate_bytes_per_s, line.cost, self.kv_bytes_per_token)

    def main(self, topology: FleetKind) -> EngineModel:
        """What MD is made of."""
        return self.relay if topology == "same-dc-homogeneous" else self.far


@dataclass(frozen=True, slots=True)
class FleetCounts:
    """Instances by role."""

    p: int
    rld: int
    md: int

    def as_dict(self) -> Mapping[str, int]:
        """By the roles' names."""
        return {"P": self.p, "RLD": self.rld, "MD": self.md}


def build_fleet(topology: FleetKind, parts: FleetParts, counts: FleetCounts) -> Fleet:
    """Put instances together. In one region nobody crosses a line, and the naive way keeps nothing at MD's side."""
    split, main = topology in SPLIT, parts.main(topology)
    kinds = (
        (Role.P, counts.p, NEAR, parts.near),
        (Role.RLD, counts.rld, NEAR, parts.relay),
        (Role.MD, counts.md, FAR if split else NEAR, main),
    )
    members = tuple(
        Member(f"{role.value.lower()}{number}", role, region, engine)
        for role, count, region, engine in kinds
        for number in range(count)
    )
    stores: dict[str, int] = {}
    for member in members:
        stores[member.region] = stores.get(member.region, 0) + member.engine.store_tokens
    return Fleet(
        members,
        (replace(parts.line, source=NEAR, dest=FAR),) if split else (),
        parts.kv_bytes_per_token,
        stores=stores,
        delta_only=topology != "naive-cross-dc",
    )


def topology_rules(topology: FleetKind, rules: Rules) -> Rules:
    """The rules under which a topology runs: the naive way shows nothing before MD has the KV."""
    if topology == "pdd":
        return rules
    return msgspec.structs.replace(rules, pipelines=("direct",), direct_classic=topology == "naive-cross-dc")


def size_fleet(topology: FleetKind, parts: FleetParts, load: Workload, budget: float) -> FleetCounts:
    """Divide a budget (of cost an hour) so that most requests can be served. At least one instance of each role."""
    need = needs(parts.near, parts.main(topology), load)
    relays = topology == "pdd"
    left = max(0.0, budget - (parts.line.cost if topology in SPLIT else 0.0))
    near, main = parts.near.cost, parts.main(topology).cost
    relay_cost = RLD_SHARE * near if relays else 0.0
    rate = left / (need.prefill_s * (near + relay_cost) + need.decode_s * main)
    found: list[tuple[float, FleetCounts]] = []
    for p in {max(1, int(rate * need.prefill_s)), max(1, int(rate * need.prefill_s) + 1)}:
        rld = max(1, round(p * relay_cost / parts.relay.cost)) if relays else 0
        md = max(1, int((left - p * near - rld * parts.relay.cost) / main + 1e-9))
        if p > 1 and p * near + rld * parts.relay.cost + md * main > left + 1e-9:
            continue
        counts = FleetCounts(p, rld, md)
        found.append((estimate_rate(topology, parts, load, counts), counts))
    return max(found, key=lambda one: one[0])[1]


def estimate_rate(topology: FleetKind, parts: FleetParts, load: Workload, counts: FleetCounts) -> float:
    """Requests in a second that a fleet can serve at most, by the closed form: where a search begins."""
    rate = fleet_rate(counts.p, counts.md, needs(parts.near, parts.main(topology), load))
    if topology not in SPLIT:
        return rate
    return min(rate, parts.line.rate_bytes_per_s / wan_bytes(topology, parts, load))


def wan_bytes(topology: FleetKind, parts: FleetParts, load: Workload) -> float:
    """Bytes of a request that cross on average."""
    crossing = load.prompt_tokens if topology == "naive-cross-dc" else load.missing_tokens
    return max(1.0, crossing * parts.kv_bytes_per_token)
