"""A simulated fleet in motion, and the snapshot of it that decisions read."""

from dataclasses import dataclass, field

from policies.output_length import Lengths
from policies.simulator.crossing import Crossing
from policies.simulator.models import Fleet, Member, WanLine
from policies.simulator.parts import BlockCache, Callback, EventQueue, SharedServer
from policies.simulator.trace import Row
from policies.types import Alignment, Hit, InstanceView, Role, SingularUse, Snapshot

MODEL = "simulated"
FULL_PREFILL = 8
"""Prompts that a P holds when it counts as full."""


@dataclass(slots=True)
class SimulatedInstance:
    """One instance at work. Prompts and extends queue for ``prefill``, one at a time; ``decode`` is shared."""

    member: Member
    cache: BlockCache
    prefill: SharedServer
    decode: SharedServer

    def compute(self, uncached_tokens: int, on_done: Callback, on_start: Callback | None = None) -> None:
        """Compute the KV of ``uncached_tokens``."""
        self.prefill.add(self.member.engine.prefill.at(uncached_tokens), on_done, on_start)

    def view(self) -> InstanceView:
        """What decisions see of it."""
        engine = self.member.engine
        return InstanceView(
            id=self.member.id,
            role=self.member.role,
            model=MODEL,
            region=self.member.region,
            running=self.prefill.running + self.decode.running,
            waiting=self.prefill.waiting + self.decode.waiting,
            max_running=FULL_PREFILL if self.member.role is Role.P else engine.max_running,
            curve=engine.prefill,
            itl_s=1.0 / engine.tokens_per_s(max(1, self.decode.running)),
        )


@dataclass(slots=True)
class World:
    """All sites, region stores and lines of a fleet."""

    fleet: Fleet
    timeline: EventQueue
    alignment: Alignment = field(default_factory=Alignment)
    singular: SingularUse = field(default_factory=SingularUse)
    lengths: Lengths = field(default_factory=Lengths)
    sites: dict[str, SimulatedInstance] = field(init=False)
    stores: dict[str, BlockCache] = field(init=False)
    crossings: dict[tuple[str, str], Crossing] = field(init=False)

    def __post_init__(self) -> None:
        fleet = self.fleet
        self.sites = {member.id: self._site(member) for member in fleet.members}
        regions = {member.region for member in fleet.members} | {line.dest for line in fleet.lines}
        self.stores = {region: BlockCache(fleet.store_tokens // fleet.block_tokens) for region in regions}
        self.crossings = {(line.source, line.dest): self._crossing(line) for line in fleet.lines}

    def hits(self, row: Row) -> dict[str, Hit | None]:
        """What each instance and its region's store have of a prompt."""
        size, prompt = self.fleet.block_tokens, row.prompt_tokens
        stored = {region: store.reach(row.blocks) * size for region, store in self.stores.items()}
        return {
            name: Hit(min(prompt, site.cache.reach(row.blocks) * size), min(prompt, stored[site.member.region]))
            for name, site in self.sites.items()
        }

    def snapshot(self) -> Snapshot:
        """What decisions see now."""
        return Snapshot(
            instances=tuple(site.view() for site in self.sites.values()),
            links={pair: one.view() for pair, one in self.crossings.items()},
            kv_bytes_per_token=self.fleet.kv_bytes_per_token,
            kv_chunk_tokens=self.fleet.block_tokens,
            alignment=self.alignment,
            singular=self.singular,
            now_s=self.timeline.now_s,
        )

    def _site(self, member: Member) -> SimulatedInstance:
        engine = member.engine
        return SimulatedInstance(
            member,
            BlockCache(engine.cache_tokens // self.fleet.block_tokens),
            SharedServer(self.timeline, lambda _: 1.0, most=1),
            SharedServer(self.timeline, engine.tokens_per_s, most=engine.max_running),
        )

    def _crossing(self, line: WanLine) -> Crossing:
        server = SharedServer(self.timeline, lambda jobs: line.rate_bytes_per_s / jobs, most=1_000_000)
        return Crossing(line, server, self.stores[line.dest])
