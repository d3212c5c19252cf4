"""Puts the passing-on together from the settings."""

from collections.abc import Collection

from backends.engines.external import ExternalModel, Provider
from backends.engines.litellm import load_litellm
from gateway.config.fleet_settings import BadSettings, UpstreamSettings
from gateway.config.settings import Settings, find_url, read_key
from gateway.fleet.pools import Pools
from gateway.limits.admission import AdmissionControl
from gateway.passthrough.endpoint import PassthroughService
from gateway.passthrough.overflow import OverflowService
from gateway.passthrough.servers import Servers
from gateway.passthrough.upstreams import Upstream, UpstreamSpec
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.timeline import Timelines
from gateway.telemetry.trace import Tracer


def build_passing(
    settings: Settings,
    pools: Pools,
    own_models: Collection[str],
    timelines: Timelines,
    metrics: Metrics,
    admission: AdmissionControl,
    tracer: Tracer | None = None,
) -> PassthroughService:
    """Build it; nothing is asked yet. Raises BadSettings."""
    upstreams = [Upstream(_read_spec(upstream)) for upstream in settings.upstreams]
    return PassthroughService(Servers(upstreams, pools, own_models), timelines, metrics, admission, tracer)


def build_overflow(
    settings: Settings,
    pools: Pools,
    timelines: Timelines,
    metrics: Metrics,
    provider: Provider | None = None,
) -> OverflowService:
    """Build it; without a ``provider`` LiteLLM is loaded where settings name external models. Raises BadSettings."""
    models = {
        external.model: ExternalModel(
            external.model,
            external.api_base,
            read_key(f"external[{external.model}].api_key_env", external.api_key_env),
            external.timeout_s,
        )
        for external in settings.external
    }
    try:
        provider = provider or (load_litellm() if models else None)
    except ImportError as error:
        raise BadSettings(f"external: LiteLLM is needed (in a checkout: pip install '.[litellm]'): {error}") from None
    return OverflowService(provider, models, pools, timelines, metrics)


def _read_spec(upstream: UpstreamSettings) -> UpstreamSpec:
    return UpstreamSpec(
        id=upstream.id,
        url=find_url(f"upstreams[{upstream.id}]", upstream.url, upstream.api_key_env),
        models=None if upstream.models is None else frozenset(upstream.models),
        paths=None if upstream.paths is None else frozenset(upstream.paths),
        region=upstream.region,
        api_key=read_key(f"upstreams[{upstream.id}].api_key_env", upstream.api_key_env),
        max_running=upstream.max_running,
        first_byte_timeout_s=upstream.first_byte_timeout_s,
        idle_timeout_s=upstream.idle_timeout_s,
    )
