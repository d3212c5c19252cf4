"""Gauges of instances on the metrics page."""

from gateway.telemetry.metrics import Metrics


def test_gauges_end_with_their_instance() -> None:
    """A page shows the instances there are now, each with its own values, and none of those that are gone."""
    metrics = Metrics()
    metrics.instances.values = {("p1", "P"): (True, 3, False, True, 0.5), ("m1", "MD"): (False, 0, True, False, 0)}
    page = metrics.exposition().decode()
    assert 'pdd_instance_up{instance="p1",role="P"} 1.0' in page
    assert 'pdd_instance_legs{instance="p1",role="P"} 3.0' in page
    assert 'pdd_instance_differs{instance="m1",role="MD"} 1.0' in page
    assert 'pdd_instance_leaks_salts{instance="p1",role="P"} 1.0' in page
    metrics.instances.values = {("p1", "P"): (True, 0, False, False, 0)}
    page = metrics.exposition().decode()
    assert 'instance="m1"' not in page
    assert "# TYPE pdd_instance_up gauge" in page
