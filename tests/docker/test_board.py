"""The provisioned board shows metrics that exist, by labels that they have."""

import asyncio
import functools
import re
from itertools import chain

import msgspec
import pytest
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.parser import text_string_to_metric_families

from backends.engines.reference.metrics import EngineMetrics
from backends.kv.bridge.metrics import BridgeMetrics
from backends.kv.bridge.mover import Mover
from backends.kv.bridge.resp import StoreAddress
from backends.kv.bridge.types import BridgeLimits
from gateway.index.metered import MeteredIndex
from gateway.telemetry.metrics import Metrics
from tests.docker.files import DOCKER, host_port, ports_of, read_compose, read_yaml
from tests.fakes.memory_index import MemoryIndex

BOARD = DOCKER / "grafana" / "dashboards" / "pdd.json"
SUFFIXES = {"counter": {"_total"}, "histogram": {"_bucket", "_sum", "_count"}, "gauge": {""}}
TARGET_LABELS = {"job", "instance", "role", "region", "le"}
METRIC = re.compile(r"\b(?:pdd|vllm)[_:]\w+")


class Target(msgspec.Struct):
    """One query of a panel."""

    expr: str
    legend: str = msgspec.field(name="legendFormat")


class Source(msgspec.Struct):
    """Where a panel's data comes from."""

    type: str
    uid: str


class Panel(msgspec.Struct):
    """As much of a panel as is checked."""

    title: str
    datasource: Source
    targets: list[Target]


class Board(msgspec.Struct):
    """As much of the board as is checked."""

    uid: str
    panels: list[Panel]


def read_board() -> Board:
    """The board that Grafana is given."""
    return msgspec.json.decode(BOARD.read_bytes(), type=Board)


@functools.cache
def read_metrics() -> dict[str, set[str]]:
    """Every sample name that gateway, bridge and engines expose, with its own labels."""
    metrics, engine = Metrics(), EngineMetrics("demo", blocks=1, block_size_tokens=16, dtype="float32")
    engine.count_prompt(1, 0, 0)
    MeteredIndex(MemoryIndex(), metrics.registry)
    found: dict[str, set[str]] = {}
    for page in (asyncio.run(_bridge_page()), engine.render()):
        for family in text_string_to_metric_families(page.decode()):
            found |= {sample.name: set(sample.labels) for sample in family.samples}
    for family in metrics.registry.collect():
        found |= {family.name + suffix: set() for suffix in SUFFIXES[family.type]}
    for metric in chain.from_iterable(
        vars(part).values() for part in (metrics, metrics.kv, metrics.passed, metrics.shared)
    ):
        if isinstance(metric, MetricWrapperBase):
            # Without samples only the metric itself knows its labels.
            for family in metric.describe():
                found |= {family.name + suffix: set(metric._labelnames) for suffix in SUFFIXES[family.type]}
    return found


async def _bridge_page() -> bytes:
    address = StoreAddress("127.0.0.1", 6379)
    return BridgeMetrics(Mover(address, address, BridgeLimits())).render()


@pytest.mark.parametrize("panel", read_board().panels, ids=lambda panel: panel.title)
def test_panel_asks_for_metrics_that_exist(panel: Panel) -> None:
    """Each query names at least one metric, and only such as are exposed, by the name that Prometheus gives them."""
    exposed = read_metrics()
    for target in panel.targets:
        asked = METRIC.findall(target.expr)
        assert asked
        assert set(asked) <= exposed.keys(), target.expr


@pytest.mark.parametrize("panel", read_board().panels, ids=lambda panel: panel.title)
def test_legend_uses_labels_that_are_kept(panel: Panel) -> None:
    """A legend names only labels that its query groups by."""
    for target in panel.targets:
        kept = {name.strip() for names in re.findall(r"by \(([^)]*)\)", target.expr) for name in names.split(",")}
        assert set(re.findall(r"\{\{(\w+)\}\}", target.legend)) <= kept, target.expr


def test_queries_group_by_labels_that_exist() -> None:
    """Each label in a query's grouping is one of the metric's own or one that Prometheus adds."""
    for panel in read_board().panels:
        for target in panel.targets:
            labels = TARGET_LABELS.union(*(read_metrics()[name] for name in METRIC.findall(target.expr)))
            for names in re.findall(r"by \(([^)]*)\)", target.expr):
                assert {name.strip() for name in names.split(",")} <= labels, target.expr


def test_board_has_a_name_and_every_panel_its_own() -> None:
    """Links to the board stay, and no two panels are called alike."""
    board = read_board()
    titles = [panel.title for panel in board.panels]
    assert board.uid == "pdd"
    assert len(set(titles)) == len(titles)


def test_source_is_the_prometheus_of_the_deployment() -> None:
    """Panels ask the provisioned source, which is the compose service at the port where it listens."""
    source = read_yaml(DOCKER / "grafana" / "datasources.yaml")["datasources"][0]
    host, port = host_port(source["url"])
    services = read_compose("compose.yaml")["services"]
    assert port in ports_of(services[host])
    assert set(services["grafana"]["networks"]) & set(services[host]["networks"])
    asked = {(panel.datasource.type, panel.datasource.uid) for panel in read_board().panels}
    assert asked == {(source["type"], source["uid"])}


def test_boards_are_mounted_where_the_provider_looks() -> None:
    """The provider's path and the home board are inside the mounted folder."""
    provider = read_yaml(DOCKER / "grafana" / "providers.yaml")["providers"][0]
    grafana = read_compose("compose.yaml")["services"]["grafana"]
    mounted = {volume.split(":")[1]: volume.split(":")[0] for volume in grafana["volumes"]}
    assert (DOCKER / mounted[provider["options"]["path"]]).resolve() == BOARD.parent
    home = grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == f"{provider['options']['path']}/{BOARD.name}"


def test_labels_of_the_gateway_keep_their_names() -> None:
    """The gateway's own label `instance` wins over the one that Prometheus would put there."""
    jobs = {job["job_name"]: job for job in read_yaml(DOCKER / "prometheus.yaml")["scrape_configs"]}
    assert jobs["gateway"]["honor_labels"] is True
