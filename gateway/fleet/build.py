"""Builds models, instances and links from their settings."""

from collections.abc import Mapping
from pathlib import Path

from backends.engines.adapters import BadEngine, EngineSpec, build_engine
from backends.engines.cache_bound import CacheBoundEngine
from backends.engines.patient import PatientEngine
from backends.kv.bridge.client import BridgePath
from backends.kv.lmcache import CacheServer
from backends.kv.prefetch import PrefetchPath
from backends.kv.pull import EnginePull, NixlPull
from gateway.config.fleet_settings import BadSettings, EngineSettings, LinkSettings
from gateway.config.settings import Settings, read_key
from gateway.fleet.curves import BadCurve, read_curve
from gateway.fleet.links import Link, MeasuredPath
from gateway.fleet.pools import Instance, InstanceSpec, ModelFacts, Pools
from gateway.text.model import ModelDirectoryError, ServedModel, load_model
from policies.types import Role


def load_models(settings: Settings) -> dict[str, ServedModel]:
    """Load every model directory. Raises BadSettings."""
    served = {}
    for number, model in enumerate(settings.models):
        try:
            served[model.name] = load_model(
                model.name,
                Path(model.path),
                reasoning_parser=model.reasoning_parser,
                tool_parser=model.tool_parser,
            )
        except ModelDirectoryError as error:
            raise BadSettings(f"models[{number}].path: {error}") from None
    return served


def model_facts(settings: Settings, served: Mapping[str, ServedModel]) -> dict[str, ModelFacts]:
    """What plans need to know of each model."""
    return {
        model.name: ModelFacts(
            model.kv_bytes_per_token,
            served[model.name].context_tokens,
            model.cache_effective,
            model.kv_name or model.name,
        )
        for model in settings.models
    }


def build_instance(engine: EngineSettings, cache_servers: dict[str, CacheServer]) -> Instance:
    """Build an instance, which is not asked yet. Raises BadSettings.

    ``cache_servers``: those that engines share, by URL; a new one is added.
    """
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
        engine.url,
        engine.max_running,
        curve,
        key,
        cost_per_s=engine.price_per_hour / 3600 / engine.max_running,
        takes_priority=engine.priority,
    )
    try:
        adapter = build_engine(engine.kind, EngineSpec(engine.id, engine.url, key, engine.options))
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


def build_link(link: LinkSettings, pools: Pools) -> Link:
    """Build one link; whoever serves it is not asked yet. Engines that move KV themselves are found in ``pools``."""
    path: MeasuredPath
    if link.bridge is not None:
        path = BridgePath(link.bridge, dtype=link.dtype, world_size=link.world_size)
    elif link.cache_server is not None:
        path = PrefetchPath(CacheServer(link.cache_server), world_size=link.world_size)
    else:
        pull = NixlPull if link.path == "nixl" else EnginePull
        path = pull(lambda id_: pools[id_].engine)
    rate_bytes_per_s = link.rate_mbit * 125_000
    return Link(
        link.source,
        link.dest,
        path,
        link.dialect,
        link.chunk_tokens,
        rate_bytes_per_s,
        lease_s=link.lease_s,
        dtype=link.dtype,
        world_size=link.world_size,
    )
