"""Gauges of the engine instances, written anew for each page: none outlives its instance."""

from collections.abc import Iterator, Mapping

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

GAUGES = {
    "pdd_instance_up": "Whether new legs may go to an instance",
    "pdd_instance_legs": "This process's legs on an instance",
    "pdd_instance_differs": "Whether canaries showed other tokens than its peers'",
    "pdd_instance_leaks_salts": "Whether canaries showed one salt's KV under another",
}

Labels = tuple[str, str]
"""Id and role of an instance."""


class InstanceGauges(Collector):
    """``values``: for each instance, the values of GAUGES in their order."""

    def __init__(self) -> None:
        self.values: Mapping[Labels, tuple[float, ...]] = {}

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Give all gauges, also when there is no instance."""
        for number, (name, text) in enumerate(GAUGES.items()):
            family = GaugeMetricFamily(name, text, labels=["instance", "role"])
            for labels, values in self.values.items():
                family.add_metric(labels, values[number])
            yield family
