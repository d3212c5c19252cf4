"""Which engines and links there are now: those of the configuration, with what the topology document changes of them.

A document that does not fit is refused whole. Engines and links that stay as they were keep their state; new ones are
used once they are found healthy; removed ones get no new work and no probes, and what runs on them goes on to its end.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from backends.kv.lmcache import CacheServer
from gateway.config.document_store import Document
from gateway.config.fleet_settings import BadSettings, EngineSettings, LinkSettings
from gateway.config.live import DocumentsRefused
from gateway.config.settings import Settings, check_references, link_name
from gateway.fleet.build import build_instance, build_link
from gateway.fleet.discovery import Found
from gateway.fleet.health import HealthWatch
from gateway.fleet.links import Link, Links
from gateway.fleet.pools import Instance, Pools, store_id
from gateway.index.types import CacheSpec, PrefixIndex
from gateway.tasks import TaskSet
from policies.section import Section, add_choices

log = logging.getLogger(__name__)

TOPOLOGY = "topology"
"""Kind of the document; there is one, named ``fleet``."""
FLEET = "fleet"


class Topology(Section, frozen=True):
    """The document: what differs from the configuration."""

    engines: Annotated[
        dict[str, EngineSettings | None],
        Meta(description="Engines by id, new ones and others than configured; null: removed."),
    ] = msgspec.field(default_factory=dict)
    links: Annotated[
        dict[str, LinkSettings | None], Meta(description="Links by name, else by `SOURCE->DEST`, in the same way.")
    ] = msgspec.field(default_factory=dict)
    draining: Annotated[tuple[str, ...], Meta(description="Ids of engines that take no new requests.")] = ()


def read_topology(value: object) -> Topology:
    """Check a document by itself. Raises BadSettings."""
    try:
        topology = msgspec.convert(value, Topology)
    except msgspec.ValidationError as error:
        raise BadSettings(add_choices(str(error), Topology)) from None
    for id_, engine in topology.engines.items():
        if engine is not None and engine.id != id_:
            raise BadSettings(f"engines[{id_}].id: {engine.id!r} stands there")
    for name, link in topology.links.items():
        if link is not None and link_name(link) != name:
            raise BadSettings(f"links[{name}]: {link_name(link)} stands there")
    return topology


def overlay(settings: Settings, topology: Topology) -> Settings:
    """Lay a document over a configuration. Raises BadSettings where the outcome is none."""
    engines = {engine.id: engine for engine in settings.engines} | topology.engines
    links = {link_name(link): link for link in settings.links} | topology.links
    for id_ in topology.draining:
        if engines.get(id_) is None and not settings.discovery:
            raise BadSettings(f"draining: there is no engine {id_!r}")
    merged = msgspec.structs.replace(
        settings,
        engines=tuple(engine for engine in engines.values() if engine is not None),
        links=tuple(link for link in links.values() if link is not None),
    )
    if not merged.engines and not merged.discovery:
        raise BadSettings("engines: none is left")
    check_references(merged)
    return merged


class LiveTopology:
    """Builds the instances and links, and changes them while requests run. Raises BadSettings."""

    def __init__(
        self,
        settings: Settings,
        index: PrefixIndex,
        clock: Callable[[], float],
        on_known: Callable[[Instance, EngineSettings], None],
        on_link: Callable[[str, str], None],
    ) -> None:
        self._on_link = on_link
        self._base = settings
        self._found: dict[str, Found] = {}
        self._document = Topology()
        self._index = index
        self._on_known = on_known
        self._cache_servers: dict[str, CacheServer] = {}
        self._engines: dict[str, EngineSettings] = {}
        self._links: dict[str, LinkSettings] = {}
        self._left: list[Instance] = []
        self._tasks = TaskSet()
        self.pools = Pools([], clock)
        self.links = Links((), 1.0)
        self.watch = HealthWatch([], settings.health_interval_s, self._note_known)
        self._change(settings, (), is_first=True)

    @property
    def names(self) -> list[str]:
        """Ids of engines, and names of links."""
        return [*self._engines, *self._links]

    async def start(self) -> None:
        """Ask every engine and link once, then go on in the background."""
        await self.links.start()
        await self.watch.start()

    async def aclose(self) -> None:
        """Stop asking, and close all connections."""
        await self.watch.aclose()
        await self.links.aclose()
        await self._tasks.aclose()
        for instance in [*self.pools.instances, *self._left]:
            await instance.engine.aclose()

    def apply(self, documents: Sequence[Document]) -> None:
        """Put the document in force; without one, the configuration. Raises Refused."""
        body: object = next((one.value for one in documents if one.name == FLEET), {})
        try:
            topology = read_topology(body)
            self._put_in_force(topology)
        except BadSettings as error:
            raise DocumentsRefused(FLEET, str(error)) from None
        self._document = topology

    def note_found(self, region: str, found: Found) -> None:
        """Put the engines that were found in a region in force, beside the configured ones and under the document."""
        before = self._found
        self._found = before | {region: found}
        try:
            self._put_in_force(self._document)
        except BadSettings as error:
            self._found = before
            log.error("the engines found in %s do not fit: %s; what there was stays", region, error)

    def _put_in_force(self, topology: Topology) -> None:
        engines = [engine for found in self._found.values() for engine in found.engines.values()]
        settings = msgspec.structs.replace(self._base, engines=(*engines, *self._base.engines))
        leaving = {id_ for found in self._found.values() for id_ in found.draining}
        self._change(overlay(settings, topology), leaving.union(topology.draining))

    def _change(self, settings: Settings, draining: Iterable[str], is_first: bool = False) -> None:
        """Build all that is new, then swap; nothing has changed when building fails. Raises BadSettings."""
        engines = {engine.id: engine for engine in settings.engines}
        links = {link_name(link): link for link in settings.links}
        instances = [self._keep_or_build(engine) for engine in engines.values()]
        opened = [self._keep_or_open(name, link) for name, link in links.items()]
        gone = [self.pools[id_] for id_, old in self._engines.items() if engines.get(id_) != old]
        self._engines = engines
        self.pools.replace(instances)
        self.watch.follow(instances)
        self.links.replace(opened)
        for instance in gone:
            self._retire(instance, replaced=instance.spec.id in engines)
        others = [] if is_first else [link for name, link in links.items() if self._links.get(name) != link]
        self._follow_stores([model.name for model in settings.models], links)
        for link in others:
            self._on_link(link.source, link.dest)
        drained = set(draining)
        for instance in instances:
            instance.draining = instance.spec.id in drained

    def _keep_or_build(self, engine: EngineSettings) -> Instance:
        if self._engines.get(engine.id) == engine:
            return self.pools[engine.id]
        return build_instance(engine, self._cache_servers)

    def _keep_or_open(self, name: str, settings: LinkSettings) -> Link:
        old = next((link for link in self.links.all if link.name == name), None)
        if old is not None and self._links.get(name) == settings:
            return old
        link = build_link(settings, self.pools)
        link.on_learnt = self._follow_store
        return link

    def _retire(self, instance: Instance, replaced: bool) -> None:
        """Give an instance no more work, and close its connections when the last leg has ended."""
        id_ = instance.spec.id
        self.links.forget(id_)
        if not replaced:
            self._index.remove_instance(id_)
        log.info("instance %s is removed; %d legs run on", id_, instance.in_flight)
        self._left.append(instance)
        instance.retire(lambda: self._tasks.start(f"close {id(instance)}", self._close(instance)))

    async def _close(self, instance: Instance) -> None:
        await instance.engine.aclose()
        self._left.remove(instance)

    def _follow_stores(self, models: Sequence[str], links: Mapping[str, LinkSettings]) -> None:
        """Have the index follow the stores that KV is brought to, and no others."""
        reached = {link.dest for link in links.values()}
        for dest in {link.dest for link in self._links.values()} - reached:
            for model in models:
                self._index.remove_instance(store_id(dest, model))
        for model in models:
            for link in self.links.of(model).values():
                self._follow_store(link, model)
        self._links = dict(links)

    def _follow_store(self, link: Link, model: str) -> None:
        """Have the index follow what a link brings of a model, in chunks as the link has them now."""
        chunk_tokens = link.kv.of(model).chunk_tokens
        self._index.add_instance(CacheSpec(store_id(link.dest, model), model, chunk_tokens))

    def _note_known(self, instance: Instance) -> None:
        self.links.forget(instance.spec.id)
        self._on_known(instance, self._engines[instance.spec.id])
