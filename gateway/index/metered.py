"""A ``PrefixIndex`` that shows itself in Prometheus, whatever index it wraps."""

import time
from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.index.types import COUNTERS, CacheHit, CacheSpec, IndexStats, PrefixIndex

_LOOKUP_SECONDS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05)


class MeteredIndex:
    """Times the lookups of ``inner``, and reads its statistics whenever ``registry`` is scraped."""

    def __init__(self, inner: PrefixIndex, registry: CollectorRegistry) -> None:
        self._inner = inner
        self._seconds = Histogram(
            "pdd_index_lookup_seconds",
            "Time to name a prompt's blocks and look them up",
            ["model"],
            buckets=_LOOKUP_SECONDS,
            registry=registry,
        )
        registry.register(_StatsCollector(inner))

    async def start(self) -> None:
        """See ``PrefixIndex.start``."""
        await self._inner.start()

    def add_instance(self, spec: CacheSpec) -> None:
        """See ``PrefixIndex.add_instance``."""
        self._inner.add_instance(spec)

    def remove_instance(self, instance_id: str) -> None:
        """See ``PrefixIndex.remove_instance``."""
        self._inner.remove_instance(instance_id)

    async def name_ahead(self, model: str, token_ids: Sequence[int], salt: str | None = None) -> None:
        """See ``PrefixIndex.name_ahead``."""
        await self._inner.name_ahead(model, token_ids, salt)

    def lookup(
        self, model: str, token_ids: Sequence[int], salt: str | None = None, lora: str | None = None
    ) -> dict[str, CacheHit]:
        """See ``PrefixIndex.lookup``."""
        begin = time.perf_counter()
        hits = self._inner.lookup(model, token_ids, salt, lora)
        if hits:  # a model without instances must not make a series: its name may be any client's invention
            self._seconds.labels(model).observe(time.perf_counter() - begin)
        return hits

    def note_routed(
        self,
        instance_id: str,
        model: str,
        token_ids: Sequence[int],
        salt: str | None = None,
        lora: str | None = None,
        rank: int = 0,
    ) -> None:
        """See ``PrefixIndex.note_routed``."""
        self._inner.note_routed(instance_id, model, token_ids, salt, lora, rank)

    def stats(self) -> IndexStats:
        """See ``PrefixIndex.stats``."""
        return self._inner.stats()

    async def aclose(self) -> None:
        """See ``PrefixIndex.aclose``."""
        await self._inner.aclose()


class _StatsCollector(Collector):
    def __init__(self, index: PrefixIndex) -> None:
        self._index = index

    def collect(self) -> Iterator[Metric]:
        """Yield the index's state as of now."""
        stats = self._index.stats()
        blocks = GaugeMetricFamily("pdd_index_blocks", "Blocks held, in whatever tier", labels=["instance"])
        known = GaugeMetricFamily("pdd_index_known", "Whether all that is held is known", labels=["instance"])
        age = GaugeMetricFamily("pdd_index_age_seconds", "Time since the last change", labels=["instance"])
        for instance_id, instance in stats.instances.items():
            blocks.add_metric([instance_id], instance.blocks)
            known.add_metric([instance_id], instance.known)
            if instance.update_age_s is not None:
                age.add_metric([instance_id], instance.update_age_s)
        yield from (blocks, known, age)
        yield GaugeMetricFamily("pdd_index_redis_up", "The same as pdd_redis_up", value=stats.redis_up)
        for name, meaning in COUNTERS.items():
            help_text = meaning[0].upper() + meaning[1:]
            yield CounterMetricFamily(f"pdd_index_{name}", help_text, value=stats.counters.get(name, 0))
