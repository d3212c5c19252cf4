"""Every metric that gateway, bridge and engines expose, by the name that Prometheus gives it."""

import asyncio
import functools
import re
from itertools import chain

from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.parser import text_string_to_metric_families

from backends.engines.reference.metrics import EngineMetrics
from backends.kv.bridge.metrics import BridgeMetrics
from backends.kv.bridge.mover import Mover
from backends.kv.bridge.resp import StoreAddress
from backends.kv.bridge.types import BridgeLimits
from gateway.index.metered import MeteredIndex
from gateway.limits.usage import UsageMeter
from gateway.telemetry.loop import LoopWatch
from gateway.telemetry.metrics import LiveGauges, Metrics
from tests.fakes.memory_index import MemoryIndex
from tests.valkey import make_away

SUFFIXES = {"counter": {"_total"}, "histogram": {"_bucket", "_sum", "_count"}, "gauge": {""}}
TARGET_LABELS = {"job", "instance", "role", "region", "le"}
METRIC = re.compile(r"\b(?:pdd|vllm)[_:]\w+")


@functools.cache
def read_metrics() -> dict[str, set[str]]:
    """Every sample name that gateway, bridge and engines expose, with its own labels."""
    metrics, engine = Metrics(), EngineMetrics("demo", blocks=1, block_size_tokens=16, dtype="float32")
    engine.count_prompt(1, 0, 0)
    MeteredIndex(MemoryIndex(), metrics.registry)
    usage, loop = UsageMeter(make_away(), metrics.registry), LoopWatch(metrics.registry)
    found: dict[str, set[str]] = {}
    for page in (asyncio.run(_bridge_page()), engine.render()):
        for family in text_string_to_metric_families(page.decode()):
            found |= {sample.name: set(sample.labels) for sample in family.samples}
    for family in metrics.registry.collect():
        found |= {family.name + suffix: set() for suffix in SUFFIXES[family.type]}
    parts = (metrics, metrics.kv, metrics.passed, metrics.shared, usage, loop)
    for metric in chain(usage._counters.values(), *(vars(part).values() for part in parts)):
        # Without samples only the metric itself knows its labels.
        if isinstance(metric, MetricWrapperBase):
            for family in metric.describe():
                found |= {family.name + suffix: set(metric._labelnames) for suffix in SUFFIXES[family.type]}
        elif isinstance(metric, LiveGauges):
            found |= {family.name: set(metric.labels) for family in metric.collect()}
    return found


async def _bridge_page() -> bytes:
    address = StoreAddress("127.0.0.1", 6379)
    return BridgeMetrics(Mover(address, address, BridgeLimits())).render()


def group_labels(expr: str) -> set[str]:
    """Labels that a query groups or joins by."""
    lists = re.findall(r"\b(?:by|on) \(([^)]*)\)", expr)
    return {name.strip() for names in lists for name in names.split(",")}


def selected_labels(expr: str) -> set[tuple[str, str]]:
    """Metrics with each of the labels that a query selects them by."""
    return {
        (metric, label)
        for metric, chosen in re.findall(r"(pdd_\w+)\{([^}]*)\}", expr)
        for label in re.findall(r"(\w+)\s*[=!]", chosen)
    }
