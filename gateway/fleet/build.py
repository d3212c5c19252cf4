"""Builds models, instances and links from their settings."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from backends.engines.adapters import BadEngine, EngineSpec, build_engine
from backends.engines.cache_bound import CacheBoundEngine
from backends.engines.patient import PatientEngine
from backends.kv.bridge.client import BridgePath
from backends.kv.bridge.fan import FannedPath
from backends.kv.bridge.reshard import LayoutRefused, plan_lots
from backends.kv.lmcache import CacheServer
from backends.kv.prefetch import PrefetchPath
from backends.kv.pull import EnginePull, NixlPull
from backends.kv.subscriber import EventSource
from backends.types import KvShape
from gateway.config.fleet_settings import BadSettings, EngineSettings, LinkSettings, ModelSettings
from gateway.config.settings import Settings, find_url, link_name, read_key
from gateway.fleet.curves import BadCurve, read_curve
from gateway.fleet.kv_layers import KvSizeUnknown
from gateway.fleet.kv_size import KvSize, find_groups, find_shape, size_kv
from gateway.fleet.kv_terms import KvBook, KvTerms
from gateway.fleet.links import Link, MeasuredPath
from gateway.fleet.pools import Instance, InstanceSpec, ModelFacts, Pools
from gateway.index.types import CacheSpec
from gateway.text.model import REASONING_FIELDS, ServedModel, load_model, read_json
from gateway.text.token_files import ModelDirectoryError
from policies.types import Role

log = logging.getLogger(__name__)

ASSUMED_BLOCK_TOKENS = 16
"""Block size of an engine that does not tell its own."""
KV_TOLERANCE = 0.01
"""How far, of the computed number, a given ``kv_bytes_per_token`` may be off without a warning."""


def load_models(settings: Settings) -> dict[str, ServedModel]:
    """Load every model directory. Raises BadSettings."""
    served = {}
    for number, model in enumerate(settings.models):
        try:
            loaded = load_model(
                model.name,
                Path(model.path),
                reasoning_parser=model.reasoning_parser,
                tool_parser=model.tool_parser,
                context_tokens=model.context_tokens,
                by_engine=model.reader == "engine",
            )
        except ModelDirectoryError as error:
            raise BadSettings(f"models[{number}].path: {error}") from None
        served[model.name] = replace(
            loaded,
            takes_media=loaded.takes_media if model.media == "auto" else model.media,
            reasoning_fields=REASONING_FIELDS & {model.reasoning_field} or REASONING_FIELDS,
            reuses_turns=model.reuse_turns,
        )
        if (told := loaded.context.excess_over) is not None:
            log.warning(
                "models[%d].context_tokens: %s is given and used, but config.json of %s tells %d: engines that are not "
                "started for more refuse such prompts",
                number,
                model.context_tokens,
                model.name,
                told,
            )
        if loaded.offers_tools and not loaded.parsers.reads_tools and not model.tool_parser:
            log.warning(
                "models[%d]: the template of %s offers tools, and how it spells calls is not known: they stay text. "
                "Set tool_parser, to none where that is wanted",
                number,
                model.name,
            )
    return served


def model_facts(settings: Settings, served: Mapping[str, ServedModel]) -> dict[str, ModelFacts]:
    """What plans need to know of each model. Raises BadSettings."""
    return {
        model.name: ModelFacts(
            find_kv_bytes(number, model, links_of(model, settings)),
            served[model.name].context,
            model.cache_effective,
            model.kv_name or model.name,
            find_kv_shape(model, links_of(model, settings)),
            find_kv_groups(model, links_of(model, settings)),
        )
        for number, model in enumerate(settings.models)
    }


def find_kv_groups(model: ModelSettings, links: Sequence[LinkSettings]) -> tuple[int | None, ...]:
    """Groups of layers that LMCache may keep apart. Raises BadSettings where a link needs them and they are unknown."""
    try:
        return find_groups(read_json(Path(model.path) / "config.json", needed=True))
    except (KvSizeUnknown, ModelDirectoryError) as error:
        for link in links:
            if link.separate_object_groups:
                raise BadSettings(
                    f"links[{link_name(link)}].separate_object_groups: the groups of {model.name} do not "
                    f"follow from its config.json: {error}"
                ) from None
        return (None,)


def links_of(model: ModelSettings, settings: Settings) -> list[LinkSettings]:
    regions = {engine.region for engine in settings.engines if engine.model == model.name}
    return [link for link in find_carriers(model.name, settings.links) if {link.source, link.dest} <= regions]


def find_carriers(model: str, links: Sequence[LinkSettings]) -> list[LinkSettings]:
    """Return the links that carry a model's KV: its own, and where regions have none those that name no models."""
    own = [link for link in links if model in (link.models or ())]
    routes = {(link.source, link.dest) for link in own}
    return own + [link for link in links if link.models is None and (link.source, link.dest) not in routes]


def find_kv_shape(model: ModelSettings, links: Sequence[LinkSettings]) -> KvShape | None:
    """How a model's KV is cut among ranks, if config.json tells it and ``kv_bytes_per_token`` does not differ.

    Raises BadSettings where one of ``links`` regroups KV and that cannot be done.
    """
    try:
        shape = find_shape(read_json(Path(model.path) / "config.json", needed=True), model.kv_dtype)
        given = model.kv_bytes_per_token
        if given is not None and abs(given - shape.token_bytes) > KV_TOLERANCE * shape.token_bytes:
            raise KvSizeUnknown(f"kv_bytes_per_token is {given}, and config.json makes it {shape.token_bytes}")
    except (KvSizeUnknown, ModelDirectoryError) as error:
        shape, why = None, str(error)
    for link in links:
        kv = read_terms(link)
        if kv.dest_world_size in (None, kv.world_size) or (shape is not None and shape.layout == "latent"):
            continue
        if shape is None:
            raise BadSettings(
                f"links[{link_name(link)}].dest_world_size: the KV of {model.name} cannot be regrouped: {why}"
            )
        try:
            plan_lots(shape, kv.chunk_tokens, kv.world_size, kv.dest_world_size)
        except LayoutRefused as error:
            raise BadSettings(f"links[{link_name(link)}].dest_world_size: model {model.name}: {error}") from None
    return shape


def find_kv_bytes(number: int, model: ModelSettings, links: Sequence[LinkSettings] = ()) -> int:
    """Bytes of KV that plans count for a token: as given, else as config.json has it. Raises BadSettings.

    LMCache keeps windowed layers for every token, unless its groups are separate; all ``links`` but NIXL's move its KV.
    """
    try:
        size = size_kv(read_json(Path(model.path) / "config.json", needed=True), model.kv_dtype)
    except (KvSizeUnknown, ModelDirectoryError) as error:
        if model.kv_bytes_per_token is not None:
            return model.kv_bytes_per_token
        raise BadSettings(
            f"models[{number}].kv_bytes_per_token: cannot be computed from config.json, so give it: {error}"
        ) from None
    if model.kv_bytes_per_token is not None:
        _compare(number, model.kv_bytes_per_token, size)
        return model.kv_bytes_per_token
    moves_all = any(link.path != "nixl" and not link.separate_object_groups for link in links)
    planned_bytes = size.unwindowed_bytes if moves_all else size.planned_bytes
    if not planned_bytes:
        raise BadSettings(
            f"models[{number}].kv_bytes_per_token: no layer of config.json keeps tokens, only states: there is nothing "
            "to plan a transfer by, so give what the KV store keeps for a token"
        )
    log.info("models[%d]: %d bytes of KV a token, %d a sequence", number, planned_bytes, size.fixed_bytes)
    return planned_bytes


def _compare(number: int, given: int, size: KvSize) -> None:
    """Tell of a given number that is neither what a token adds, nor that with windows kept whole."""
    for computed in (size.per_token_bytes, size.unwindowed_bytes):
        if abs(given - computed) <= KV_TOLERANCE * computed:
            return
    log.warning(
        "models[%d].kv_bytes_per_token: %d is given and used, but config.json makes it %d",
        number,
        given,
        size.planned_bytes,
    )


def build_instance(engine: EngineSettings, cache_servers: dict[str, CacheServer]) -> Instance:
    """Build an instance, which is not asked yet. Raises BadSettings.

    ``cache_servers``: those that engines share, by URL; a new one is added.
    """
    url = find_url(f"engines[{engine.id}]", engine.url, engine.api_key_env)
    key = read_key(f"engines[{engine.id}].api_key_env", engine.api_key_env)
    curve = None
    if engine.prefill_curve is not None:
        try:
            curve = read_curve(Path(engine.prefill_curve))
        except BadCurve as error:
            raise BadSettings(f"engines[{engine.id}].prefill_curve: {error}") from None
    role = Role(engine.role)
    spec = InstanceSpec(
        engine.id,
        role,
        engine.model,
        engine.region,
        url,
        engine.max_running,
        curve,
        key,
        cost_per_s=engine.price_per_hour / 3600 / engine.max_running,
        takes_priority=engine.priority,
        data_parallel_size=engine.data_parallel_size,
    )
    try:
        adapter = build_engine(engine.kind, EngineSpec(engine.id, url, key, engine.options))
    except BadEngine as error:
        raise BadSettings(f"engines[{engine.id}].{error}") from None
    if engine.abort_grace_s:
        adapter = PatientEngine(adapter, engine.abort_grace_s)
    if engine.cache_server is not None:
        server = cache_servers.get(engine.cache_server)
        if server is None:
            server = cache_servers[engine.cache_server] = CacheServer(engine.cache_server)
        adapter = CacheBoundEngine(adapter, server)
    return Instance(spec, adapter)


def build_cache_spec(instance: Instance, engine: EngineSettings) -> CacheSpec:
    """Say how the cache of an engine that has told what it is can be followed, each of its ranks by itself."""
    found, size, id_ = instance.capabilities, instance.data_parallel_size, instance.spec.id
    sources: tuple[EventSource, ...] = ()
    if engine.kv_events == "auto":
        sources = tuple(EventSource(*pair) for pair in (found.event_sources if found else ()))
        if not sources:
            log.warning("%s tells of no KV events: its cache is guessed from routing", id_)
        elif len(sources) != size:
            log.warning("%s tells of %d sources of KV events; data_parallel_size is %d", id_, len(sources), size)
    elif engine.kv_events is not None:
        first = EventSource(engine.kv_events, engine.kv_replay)
        sources = tuple(first.of_rank(rank) for rank in range(size))
    return CacheSpec(
        id=id_,
        model=instance.spec.model,
        block_size_tokens=(found.block_size_tokens if found else None) or ASSUMED_BLOCK_TOKENS,
        sources=sources,
        dp_size=size,
        boot_id=found.boot_id if found else None,
        first_rank=found.first_rank if found else 0,
    )


def read_terms(link: LinkSettings) -> KvTerms:
    """What settings say of the KV on a link; defaults, which are not pinned, where they are silent."""
    said = {
        "dialect": link.dialect,
        "chunk_tokens": link.chunk_tokens,
        "dtype": link.dtype,
        "world_size": link.world_size,
        "dest_world_size": link.dest_world_size,
        "has_groups": link.separate_object_groups,
    }
    pins: dict[str, Any] = {name: value for name, value in said.items() if value is not None}
    if link.hash_seed is not None:
        pins["hash_seed"] = None if link.hash_seed == "no_vllm" else link.hash_seed
    layout = None if link.kv_layout == "auto" else link.kv_layout
    return KvTerms(**pins, layout=layout, pinned=frozenset(pins))


def build_link(link: LinkSettings, pools: Pools) -> Link:
    """Build one link; whoever serves it is not asked yet. Engines that move KV themselves are found in ``pools``.

    Raises BadSettings.
    """
    path: MeasuredPath
    if link.bridge is not None:
        key = read_key(f"links[{link_name(link)}].bridge_key_env", link.bridge_key_env)
        urls = [link.bridge, *link.bridge_workers]
        bridges = [
            BridgePath(url, part=(number, len(urls)) if len(urls) > 1 else None, key=key)
            for number, url in enumerate(urls)
        ]
        path = FannedPath(bridges) if len(bridges) > 1 else bridges[0]
    elif link.cache_server is not None:
        path = PrefetchPath(CacheServer(link.cache_server))
    else:
        pull = NixlPull if link.path == "nixl" else EnginePull
        path = pull(lambda id_: pools[id_].engine)
    rate_bytes_per_s = link.rate_mbit * 125_000
    return Link(
        link.source,
        link.dest,
        path,
        KvBook(read_terms(link)),
        rate_bytes_per_s,
        lease_s=link.lease_s,
        lends=link.relay_kv == "nixl",
        given_name=link.name,
        models=None if link.models is None else frozenset(link.models),
    )
