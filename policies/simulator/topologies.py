"""The ways to build a fleet of two kinds of chips that are compared with each other, and their sizes."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, get_args

import msgspec

from policies.rules import Rules
from policies.simulator.closed_form import RLD_SHARE, ChipPair, Needs, Workload, needs
from policies.simulator.engine_model import EngineModel, as_decoder
from policies.simulator.fleet import Fleet, Member, WanLine
from policies.types import Role

FleetKind = Literal["same-dc-homogeneous", "same-dc-heterogeneous", "naive-cross-dc", "pdd"]
TOPOLOGIES: tuple[FleetKind, ...] = get_args(FleetKind)
NEAR, FAR = "a", "b"
"""Regions of P and RLD, and of MD where it stands elsewhere."""


@dataclass(frozen=True, slots=True)
class FleetParts:
    """What fleets are made of. ``store_tokens``: what the memory of one instance's hosts adds to its region's store."""

    near: EngineModel
    """A's chips, set up for prefill."""
    far: EngineModel
    """B's chips, set up for decode."""
    line: WanLine
    kv_bytes_per_token: int
    block_tokens: int
    near_store_tokens: int
    far_store_tokens: int

    @property
    def pair(self) -> ChipPair:
        """The same for the closed form."""
        rate, share = self.line.rate_bytes_per_s, self.line.cost
        return ChipPair(self.near, self.far, rate, share, self.kv_bytes_per_token)


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
    split = topology in ("naive-cross-dc", "pdd")
    main = as_decoder(parts.near) if topology == "same-dc-homogeneous" else parts.far
    main_region = FAR if split else NEAR
    kinds = (
        (Role.P, counts.p, NEAR, parts.near),
        (Role.RLD, counts.rld, NEAR, as_decoder(parts.near)),
        (Role.MD, counts.md, main_region, main),
    )
    members = tuple(
        Member(f"{role.value.lower()}{number}", role, region, engine)
        for role, count, region, engine in kinds
        for number in range(count)
    )
    near, far = (counts.p + counts.rld) * parts.near_store_tokens, counts.md * parts.far_store_tokens
    return Fleet(
        members,
        (replace(parts.line, source=NEAR, dest=FAR),) if split else (),
        parts.kv_bytes_per_token,
        parts.block_tokens,
        stores={NEAR: near, FAR: far} if split else {NEAR: near + far},
        delta_only=topology != "naive-cross-dc",
    )


def topology_rules(topology: FleetKind, rules: Rules) -> Rules:
    """The rules under which a topology runs: the naive way shows nothing before MD has the KV."""
    if topology == "pdd":
        return rules
    return msgspec.structs.replace(rules, pipelines=("direct",), direct_classic=topology == "naive-cross-dc")


def size_fleet(topology: FleetKind, parts: FleetParts, load: Workload, budget: float) -> FleetCounts:
    """Divide a budget (of cost an hour) so that prefill and decode are equally busy. At least one instance of each."""
    main = parts.near if topology == "same-dc-homogeneous" else parts.far
    need = needs(parts.near, main, load)
    split, relays = topology in ("naive-cross-dc", "pdd"), topology == "pdd"
    left = max(0.0, budget - (parts.line.cost if split else 0.0))
    share = 1 + (RLD_SHARE if relays else 0.0)
    rate = left / (need.prefill_s * share * parts.near.cost + need.decode_s * main.cost)
    p = max(1, round(rate * need.prefill_s))
    rld = max(1, round(p * RLD_SHARE)) if relays else 0
    md = max(1, int((left - (p + rld) * parts.near.cost) / main.cost + 1e-9))
    return FleetCounts(p, rld, md)


def estimate_rate(topology: FleetKind, parts: FleetParts, load: Workload, counts: FleetCounts) -> float:
    """Requests in a second that a fleet can serve at most, by the closed form: where a search begins."""
    main = parts.near if topology == "same-dc-homogeneous" else parts.far
    need: Needs = needs(parts.near, main, load)
    rate = min(counts.p / need.prefill_s, counts.md / need.decode_s)
    if topology not in ("naive-cross-dc", "pdd"):
        return rate
    crossing = load.missing_tokens if topology == "pdd" else load.prompt_tokens
    wan_bytes = max(1.0, crossing * parts.kv_bytes_per_token)
    return min(rate, parts.line.rate_bytes_per_s / wan_bytes)
