"""The WAN links: on which path KV crosses each, and what is known of it."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from backends.base import KvPath
from backends.errors import BackendError
from backends.transport.patience import PeerTimeout
from backends.types import LinkState, StoreSide
from gateway.errors import reason_of
from gateway.fleet.kv_reading import StoreReading
from gateway.fleet.kv_terms import KvBook
from gateway.fleet.kv_trust import Route, name_link
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


def _tell_nobody(link: "Link", model: str) -> None:
    """Nobody wants to know."""


@dataclass(slots=True)
class Link:
    """One directed link, its KV path and the newest measurement; the assumed rate holds until one exists.

    ``kv``: how the models' KV is named and cut. ``on_learnt`` is called after that was found to be other for a model.
    """

    source: str
    dest: str
    path: MeasuredPath
    kv: KvBook
    assumed_rate_bytes_per_s: float
    lease_s: float = 30.0
    """How long P keeps KV that it lends, where engines lend."""
    lends: bool = False
    """Engines of the source region lend each other KV, beside what takes it over the link."""
    given_name: str | None = None
    models: frozenset[str] | None = None
    """Whose KV it carries; None: that of all that have no other link between its regions."""
    state: LinkState | None = None
    on_learnt: Callable[["Link", str], None] = _tell_nobody

    @property
    def name(self) -> str:
        """What logs and metrics call it."""
        return self.given_name or name_link(self.route)

    def learn(self, model: str, seen: Mapping[StoreSide, tuple[str, StoreReading | None]]) -> bool:
        """Engines of the two regions were seen to store a model's KV so (None: it was not seen); whether it is news."""
        for side, (instance_id, reading) in seen.items():
            self.kv.note(model, side, instance_id, reading)
        is_news = self.kv.settle(model)
        if is_news:
            self.on_learnt(self, model)
        return is_news

    @property
    def route(self) -> tuple[str, str]:
        """Its two regions."""
        return self.source, self.dest

    def describe_unseen(self, model: str, kv_name: str, salted: bool, after_s: float) -> str:
        """Say what keys were looked for in vain, so that somebody can compare it with how P's engines are started."""
        kv = self.kv.of(model)
        return (
            f"no chunk was seen in region {self.source}'s store {after_s:g} s after P's end; the keys were made of "
            f"dialect {kv.dialect}, model name {kv_name}, chunks of {kv.chunk_tokens} tokens, dtype {kv.dtype}, "
            f"world size {kv.world_size}, {'with' if salted else 'without'} a salt"
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
    """All links, kept fresh by one task each: a bridge that hangs holds up no other.

    Several may join the same regions, each for models of its own.
    """

    def __init__(self, links: Iterable[Link], interval_s: float) -> None:
        self.all = tuple(links)
        self._by_model: dict[str, dict[Route, Link]] = {}
        self._interval_s = interval_s
        self._tasks = TaskSet()
        self._is_started = False
        self._left: list[Link] = []

    def replace(self, links: Iterable[Link]) -> None:
        """Offer other links from now on; new ones are asked at once. What crosses those that leave goes on crossing."""
        before, self.all = self.all, tuple(links)
        self._by_model.clear()
        left = [link for link in before if all(link is not one for one in self.all)]
        new = [link for link in self.all if all(link is not old for old in before)]
        self._left += left
        for link in left:
            self._tasks.end(str(id(link)))
        if self._is_started:
            for link in new:
                self._tasks.start(str(id(link)), self._watch(link, 0.0))

    def of(self, model: str) -> dict[Route, Link]:
        """The links that carry a model's KV, by their regions."""
        found = self._by_model.get(model)
        if found is None:
            own = {link.route: link for link in self.all if link.models is not None and model in link.models}
            found = self._by_model[model] = {link.route: link for link in self.all if link.models is None} | own
        return found

    def get(self, source: str, dest: str, model: str) -> Link | None:
        """The link that carries a model's KV between two regions, if there is one."""
        return self.of(model).get((source, dest))

    def first_from(self, source: str, where: Where, model: str) -> Link | None:
        """Any link that takes a model's KV from a region to one where it may be."""
        fitting = (link for link in self.of(model).values() if link.source == source)
        return next((link for link in fitting if where.allows(link.dest)), None)

    def views(self, model: str) -> dict[Route, LinkView]:
        """What policies see."""
        return {route: link.view() for route, link in self.of(model).items()}

    def forget(self, instance_id: str) -> None:
        """Another engine process is behind an id, or none: how it stores KV is to be learnt anew."""
        for link in self.all:
            link.kv.forget(instance_id)

    def show_metrics(self, metrics: Metrics) -> None:
        """Set the gauges of these links, and drop all others."""
        metrics.kv.links.values = {
            (link.name,): (view.up, view.rate_bytes_per_s, link.assumed_rate_bytes_per_s)
            for link in self.all
            for view in (link.view(),)
        }

    def chunk_tokens(self, model: str) -> int:
        """Coarsest granularity in which a model's KV crosses."""
        return max((link.kv.of(model).chunk_tokens for link in self.of(model).values()), default=1)

    async def start(self) -> None:
        """Ask every bridge once, then go on in the background."""
        await self.refresh()
        self._is_started = True
        for link in self.all:
            self._tasks.start(str(id(link)), self._watch(link, self._interval_s))

    async def refresh(self) -> None:
        """Ask every bridge now."""
        await asyncio.gather(*(self._ask(link) for link in self.all))

    async def aclose(self) -> None:
        """Stop asking, and let the paths go."""
        await self._tasks.aclose()
        for link in [*self.all, *self._left]:
            await link.path.aclose()

    async def _ask(self, link: Link) -> None:
        try:
            async with PeerTimeout(POLL_TIMEOUT_S):
                state = await link.path.link()
        except (BackendError, TimeoutError) as error:
            if link.state is not None:
                log.warning("the KV path %s is lost: %s", link.name, reason_of(error))
            link.state = None
            return
        if link.state is None:
            log.info("the KV path %s answers", link.name)
        link.state = state

    async def _watch(self, link: Link, first_after_s: float) -> None:
        await asyncio.sleep(first_after_s)
        while True:
            await self._ask(link)
            await asyncio.sleep(self._interval_s)
