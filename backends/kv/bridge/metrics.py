"""The bridge's Prometheus metrics, read from the mover at each scrape."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from backends.kv.bridge.mover import Mover


class _BridgeCollector(Collector):
    def __init__(self, mover: Mover) -> None:
        self._mover = mover

    def collect(self) -> Iterator[Metric]:
        """Yield the present values."""
        mover, tally = self._mover, self._mover.tally
        chunks = CounterMetricFamily("pdd_bridge_chunks", "Chunks by what became of them", labels=["result"])
        for result, count in (
            ("moved", tally.moved),
            ("present", tally.present),
            ("refused", tally.refused),
            ("retried", tally.retried),
        ):
            chunks.add_metric([result], count)
        yield chunks
        transfers = CounterMetricFamily("pdd_bridge_transfers", "Transfers by how they ended", labels=["result"])
        for result, count in (("complete", tally.complete), ("failed", tally.failed), ("stopped", tally.stopped)):
            transfers.add_metric([result], count)
        yield transfers
        for name, text, total in (
            ("pdd_bridge_wan_bytes", "Bytes received over the link", mover.pace.arrived_bytes),
            ("pdd_bridge_chunk_bytes", "Bytes of the chunks moved", tally.moved_bytes),
            ("pdd_bridge_connects", "Connections opened over the link", mover.source.opened_count),
        ):
            yield CounterMetricFamily(name, text, value=total)
        queued = GaugeMetricFamily(
            "pdd_bridge_queued_bytes", "Bytes that open transfers wait for, by the best class", labels=["priority"]
        )
        for priority, queued_bytes in mover.schedule.queued_by_class().items():
            queued.add_metric([priority], queued_bytes)
        yield queued
        for name, text, value in (
            ("pdd_bridge_open_transfers", "Transfers open", len(mover.transfers)),
            ("pdd_bridge_open_tenants", "Tenants with open transfers", mover.schedule.open_tenants),
            ("pdd_bridge_held_bytes", "Bytes of chunks in memory", mover.schedule.held_bytes),
            ("pdd_bridge_link_up", "Whether the sending store answers", float(mover.link_up)),
            ("pdd_bridge_link_rate_bytes_per_second", "Measured rate", mover.pace.rate_bytes_per_s),
            ("pdd_bridge_link_rtt_seconds", "Measured round trip", mover.pace.rtt_s),
            ("pdd_bridge_destination_up", "Whether the receiving store answers", float(mover.destination_up)),
        ):
            yield GaugeMetricFamily(name, text, value=value)


class BridgeMetrics:
    """Metrics of one bridge, in a registry of its own."""

    def __init__(self, mover: Mover) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_BridgeCollector(mover))

    def render(self) -> bytes:
        """Text exposition."""
        return generate_latest(self._registry)
