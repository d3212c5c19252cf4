"""The WAN links: on which path KV crosses each, and what is known of it."""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from backends.base import KvPath
from backends.errors import BackendError
from backends.transport.patience import PeerTimeout
from backends.types import KvShape, LinkState, StoreSide
from gateway.errors import reason_of
from gateway.fleet.kv_reading import LinkTerms
from gateway.fleet.kv_trust import name_link
from gateway.tasks import TaskSet
from gateway.telemetry.metrics import Metrics
from policies.types import LinkView
from policies.where import Where

log = logging.getLogger(__name__)

POLL_TIMEOUT_S = 3.0
UNKNOWN = LinkState(0.0, 0, 0.0, up=False, wan_bytes_total=0)


class MeasuredPath(KvPath, Protocol):
    """A KV path that also tells what it knows of its link."""

    async def link(self) -> LinkState:
        """Ask for rate, queue and round trip. Raises TransferFailed."""
        ...


@dataclass(slots=True)
class Link:
    """One directed link, its KV path and the newest measurement; the assumed rate holds until one exists."""

    source: str
    dest: str
    path: MeasuredPath
    dialect: str
    chunk_tokens: int
    assumed_rate_bytes_per_s: float
    lease_s: float = 30.0
    """How long P keeps KV that it lends, where engines lend."""
    lends: bool = False
    """Engines of the source region lend each other KV, beside what takes it over the link."""
    dtype: str = "float32"
    world_size: int = 1
    dest_world_size: int | None = None
    has_groups: bool = False
    hash_seed: int | None = None
    state: LinkState | None = None

    def terms(self, side: StoreSide, kv_name: str, shape: KvShape | None = None, groups: int = 1) -> LinkTerms:
        """What it takes for granted of a model's KV in one of its stores; ``groups``: those that may be kept apart."""
        world_size = self.world_size if side == "source" else self.dest_world_size or self.world_size
        heads = None if shape is None else shape.heads
        if shape is not None and shape.layout == "latent":
            world_size = 1
        return LinkTerms(
            self.dialect,
            kv_name,
            self.chunk_tokens,
            self.hash_seed,
            self.dtype,
            world_size,
            heads,
            groups if self.has_groups else 1,
        )

    @property
    def route(self) -> tuple[str, str]:
        """Its two regions."""
        return self.source, self.dest

    def describe_unseen(self, kv_name: str, salted: bool, after_s: float) -> str:
        """Say what keys were looked for in vain, so that somebody can compare it with how P's engines are started."""
        return (
            f"no chunk was seen in region {self.source}'s store {after_s:g} s after P's end; the keys were made of "
            f"dialect {self.dialect}, model name {kv_name}, chunks of {self.chunk_tokens} tokens, dtype {self.dtype}, "
            f"world size {self.world_size}, {'with' if salted else 'without'} a salt"
        )

    def view(self) -> LinkView:
        """What policies see: a link whose bridge does not answer is down."""
        state, traits = self.state or UNKNOWN, self.path.traits
        return LinkView(
            self.source,
            self.dest,
            rate_bytes_per_s=state.rate_bytes_per_s or self.assumed_rate_bytes_per_s,
            queued_bytes=state.queued_bytes - state.queued_later_bytes,
            rtt_s=state.rtt_s,
            up=state.up,
            open_transfers=_ahead(state),
            can_stop=traits.can_stop,
            reports_progress=traits.reports_progress,
            overlaps_prefill=traits.overlaps_prefill,
            lends=self.lends or traits.lends,
        )


def _ahead(state: LinkState) -> int | None:
    """How many of the open transfers do not let a new one go first."""
    return state.open_transfers if state.open_transfers is None else state.open_transfers - state.later_transfers


class Links:
    """All links, kept fresh by one task each: a bridge that hangs holds up no other."""

    def __init__(self, links: Mapping[tuple[str, str], Link], interval_s: float) -> None:
        self._links = links
        self._interval_s = interval_s
        self._tasks = TaskSet()
        self._is_started = False
        self._left: list[Link] = []

    def replace(self, links: Mapping[tuple[str, str], Link]) -> None:
        """Offer other links from now on; new ones are asked at once. What crosses those that leave goes on crossing."""
        kept = {id(link) for link in links.values()}
        left = [link for link in self._links.values() if id(link) not in kept]
        new = [link for link in links.values() if all(link is not old for old in self._links.values())]
        self._left += left
        self._links = links
        for link in left:
            self._tasks.end(str(id(link)))
        if self._is_started:
            for link in new:
                self._tasks.start(str(id(link)), self._watch(link, 0.0))

    def get(self, source: str, dest: str) -> Link | None:
        """The link between two regions, if there is one."""
        return self._links.get((source, dest))

    def first_from(self, source: str, where: Where) -> Link | None:
        """Any link that leaves a region for one where the KV may be."""
        fitting = (link for link in self._links.values() if link.source == source)
        return next((link for link in fitting if where.allows(link.dest)), None)

    def views(self) -> dict[tuple[str, str], LinkView]:
        """What policies see."""
        return {key: link.view() for key, link in self._links.items()}

    def show_metrics(self, metrics: Metrics) -> None:
        """Set the gauges of these links, and drop all others."""
        metrics.kv.links.values = {
            (name_link(route),): (view.up, view.rate_bytes_per_s, self._links[route].assumed_rate_bytes_per_s)
            for route, view in self.views().items()
        }

    @property
    def chunk_tokens(self) -> int:
        """Coarsest granularity in which KV crosses."""
        return max((link.chunk_tokens for link in self._links.values()), default=1)

    async def start(self) -> None:
        """Ask every bridge once, then go on in the background."""
        await self.refresh()
        self._is_started = True
        for link in self._links.values():
            self._tasks.start(str(id(link)), self._watch(link, self._interval_s))

    async def refresh(self) -> None:
        """Ask every bridge now."""
        await asyncio.gather(*(self._ask(link) for link in self._links.values()))

    async def aclose(self) -> None:
        """Stop asking, and let the paths go."""
        await self._tasks.aclose()
        for link in [*self._links.values(), *self._left]:
            await link.path.aclose()

    async def _ask(self, link: Link) -> None:
        try:
            async with PeerTimeout(POLL_TIMEOUT_S):
                state = await link.path.link()
        except (BackendError, TimeoutError) as error:
            if link.state is not None:
                log.warning("the KV path %s->%s is lost: %s", link.source, link.dest, reason_of(error))
            link.state = None
            return
        if link.state is None:
            log.info("the KV path %s->%s answers", link.source, link.dest)
        link.state = state

    async def _watch(self, link: Link, first_after_s: float) -> None:
        await asyncio.sleep(first_after_s)
        while True:
            await self._ask(link)
            await asyncio.sleep(self._interval_s)
