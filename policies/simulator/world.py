"""A simulated fleet in motion, and the snapshot of it that decisions read."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from policies.output_length import Lengths
from policies.simulator.crossing import Crossing
from policies.simulator.engine import SimulatedEngine
from policies.simulator.engine_model import EngineModel
from policies.simulator.fleet import Fleet, Member, WanLine
from policies.simulator.parts import BlockCache, EventQueue, SharedServer
from policies.simulator.trace import Row
from policies.types import Alignment, Hit, InstanceView, Role, SingularUse, Snapshot
from policies.valley import PrefillCurve

MODEL = "simulated"
FULL_PREFILL = 8
"""Prompts that a P holds when it counts as full."""


@dataclass(slots=True)
class SimulatedInstance:
    """One instance at work, and the prefixes that its memory still holds."""

    member: Member
    engine: SimulatedEngine
    cache: BlockCache
    curve: PrefillCurve
    _view: InstanceView | None = None
    _seen: tuple[int, int, int] = (-1, 0, 0)

    def view(self) -> InstanceView:
        """What decisions see of it."""
        engine, model = self.engine, self.member.engine
        seen = (engine.running, engine.waiting, engine.kv_used)
        if self._view is None or seen != self._seen:
            self._seen = seen
            self._view = InstanceView(
                id=self.member.id,
                role=self.member.role,
                model=MODEL,
                region=self.member.region,
                running=engine.running,
                waiting=engine.waiting,
                kv_usage=min(1.0, engine.kv_used / model.kv_tokens),
                max_running=FULL_PREFILL if self.member.role is Role.P else model.max_running,
                curve=self.curve,
                itl_s=engine.itl_s,
            )
        return self._view

    def load_s(self, tokens: int, kv_bytes_per_token: int) -> float:
        """Seconds until KV of so many tokens has come from the region's store, or from P."""
        return tokens * kv_bytes_per_token / self.member.engine.load_bytes_per_s


@dataclass(slots=True)
class World:
    """All sites, region stores and lines of a fleet."""

    fleet: Fleet
    timeline: EventQueue
    alignment: Alignment = field(default_factory=Alignment)
    singular: SingularUse = field(default_factory=SingularUse)
    lengths: Lengths = field(default_factory=Lengths)
    sessions: dict[str, frozenset[str]] = field(default_factory=dict)
    aligning: int = 0
    """Answers whose KV is being brought to MD afterwards."""
    dropped: int = 0
    """Those that were one too many."""
    on_end: Callable[[Row], None] = lambda row: None
    """Told of each answer that is complete."""
    sites: dict[str, SimulatedInstance] = field(init=False)
    stores: dict[str, BlockCache] = field(init=False)
    crossings: dict[tuple[str, str], Crossing] = field(init=False)

    def __post_init__(self) -> None:
        fleet = self.fleet
        curves: dict[int, PrefillCurve] = {}
        self.sites = {member.id: self._site(member, curves) for member in fleet.members}
        regions = {member.region for member in fleet.members} | {line.dest for line in fleet.lines}
        self.stores = {
            region: BlockCache(fleet.stores.get(region, fleet.store_tokens) // fleet.block_tokens)
            for region in sorted(regions)
        }
        self.crossings = {(line.source, line.dest): self._crossing(line) for line in fleet.lines}

    def warm(self, paths: Iterable[Sequence[int]]) -> None:
        """Begin with these prefixes in every region's store, as after hours of such traffic: the last that fit."""
        known = list(paths)
        for store in self.stores.values():
            first, room = len(known), store.most
            while first and len(known[first - 1]) <= room:
                first -= 1
                room -= len(known[first])
            for blocks in known[first:]:
                store.add(blocks)

    def hits(self, row: Row) -> dict[str, Hit | None]:
        """What each instance and its region's store have of a prompt."""
        size, prompt, blocks = self.fleet.block_tokens, row.prompt_tokens, row.blocks
        stored = {region: min(prompt, store.reach(blocks) * size) for region, store in self.stores.items()}
        first = blocks[0] if blocks else -1
        found: dict[str, Hit | None] = {}
        for name, site in self.sites.items():
            member = site.member
            if member.role is Role.MD and not self.fleet.delta_only:
                found[name] = Hit(0)
            else:
                own = min(prompt, site.cache.reach(blocks) * size) if first in site.cache else 0
                found[name] = Hit(own, stored[member.region])
        return found

    def snapshot(self) -> Snapshot:
        """What decisions see now."""
        return Snapshot(
            instances=tuple([site.view() for site in self.sites.values()]),
            links={pair: one.view() for pair, one in self.crossings.items()},
            kv_bytes_per_token=max(1, round(self.fleet.kv_bytes_per_token * self.fleet.wire_share)),
            kv_chunk_tokens=self.fleet.block_tokens,
            alignment=self.alignment,
            singular=self.singular,
            sessions=self.sessions,
            now_s=self.timeline.now_s,
        )

    def _site(self, member: Member, curves: dict[int, PrefillCurve]) -> SimulatedInstance:
        model: EngineModel = member.engine
        if id(model) not in curves:
            curves[id(model)] = model.curve()
        return SimulatedInstance(
            member,
            SimulatedEngine(self.timeline, model),
            BlockCache(model.kv_tokens // self.fleet.block_tokens),
            curves[id(model)],
        )

    def _crossing(self, line: WanLine) -> Crossing:
        rate, most = line.rate_bytes_per_s, line.transfer_bytes_per_s
        server = SharedServer(self.timeline, lambda jobs: min(most, rate / jobs), most=1_000_000)
        return Crossing(line, server, self.stores[line.dest])
