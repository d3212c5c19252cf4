"""Puts the passing-on together from the settings."""

from collections.abc import Collection

from gateway.api.gate import Gate
from gateway.control.pools import Pools
from gateway.passthrough.endpoint import Passing
from gateway.passthrough.servers import Servers
from gateway.passthrough.upstreams import Upstream, UpstreamSpec
from gateway.settings import Settings, UpstreamSettings, read_key
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.timeline import Timelines


def build_passing(
    settings: Settings,
    pools: Pools,
    own_models: Collection[str],
    timelines: Timelines,
    metrics: Metrics,
    gate: Gate,
) -> Passing:
    """Build it; nothing is asked yet. Raises BadSettings."""
    upstreams = [Upstream(_read_spec(upstream)) for upstream in settings.upstreams]
    return Passing(Servers(upstreams, pools, own_models), timelines, metrics, gate)


def _read_spec(upstream: UpstreamSettings) -> UpstreamSpec:
    return UpstreamSpec(
        id=upstream.id,
        url=upstream.url,
        models=None if upstream.models is None else frozenset(upstream.models),
        paths=None if upstream.paths is None else frozenset(upstream.paths),
        api_key=read_key(f"upstreams[{upstream.id}].api_key_env", upstream.api_key_env),
        max_running=upstream.max_running,
        first_byte_timeout_s=upstream.first_byte_timeout_s,
        idle_timeout_s=upstream.idle_timeout_s,
    )
