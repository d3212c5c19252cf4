"""The provisioned board shows metrics that exist, by labels that they have."""

import re

import msgspec
import pytest

from tests.docker.files import DOCKER, host_port, ports_of, read_compose, read_yaml
from tests.docker.metrics import METRIC, TARGET_LABELS, group_labels, read_metrics, selected_labels

BOARD = DOCKER / "grafana" / "dashboards" / "pdd.json"
PART = re.compile(r"_(bucket|sum|count)$")
NOT_SHOWN = {
    "its work, of interest when an engine's events are looked into": {
        "pdd_index_bad_frames_total",
        "pdd_index_blocks",
        "pdd_index_dropped_notes_total",
        "pdd_index_duplicates_total",
        "pdd_index_endpoint_errors_total",
        "pdd_index_forged_frames_total",
        "pdd_index_frames_total",
        "pdd_index_ignored_blocks_total",
        "pdd_index_known",
        "pdd_index_leases_taken_total",
        "pdd_index_loads_total",
        "pdd_index_lookup_seconds",
        "pdd_index_lookups_total",
        "pdd_index_opaque_blocks_total",
        "pdd_index_orphan_blocks_total",
        "pdd_index_replayed_frames_total",
        "pdd_index_republished_total",
        "pdd_index_restarts_total",
        "pdd_index_resumed_total",
        "pdd_index_skipped_events_total",
        "pdd_index_unknown_removals_total",
    },
    "another name of one that is shown": {"pdd_index_redis_up"},
    "the bridge's work, of interest when a transfer is looked into": {
        "pdd_bridge_chunk_bytes_total",
        "pdd_bridge_chunks_total",
        "pdd_bridge_connects_total",
        "pdd_bridge_link_rtt_seconds",
    },
    "shown by `pdd rules` and at /admin/rules": {
        "pdd_documents_age_seconds",
        "pdd_documents_refused_total",
        "pdd_documents_revision",
    },
    "by tenant in `pdd usage`, in sum beside others here": {
        "pdd_tenant_refused_total",
        "pdd_tenant_requests_total",
        "pdd_tenant_wan_bytes_total",
    },
    "of clients' mistakes, or rare": {"pdd_fused_left_total", "pdd_unread_tool_arguments_total", "pdd_loop_tasks"},
    "how a full process refuses; what it refused is shown": {"pdd_loop_lag_seconds", "pdd_requests_carried_most"},
    "of tracing itself": {"pdd_spans_dropped_total", "pdd_spans_sent_total"},
    "first bytes of passed answers are their servers' own": {"pdd_passed_first_byte_seconds"},
    "by model in `pdd usage`": {"pdd_external_tokens_total"},
}


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


def test_queries_use_labels_that_exist() -> None:
    """Each label that a query groups or selects by is one of the metric's own or one that Prometheus adds."""
    for panel in read_board().panels:
        for target in panel.targets:
            labels = TARGET_LABELS.union(*(read_metrics()[name] for name in METRIC.findall(target.expr)))
            assert group_labels(target.expr) <= labels, target.expr
            for metric, label in selected_labels(target.expr):
                assert label in TARGET_LABELS | read_metrics()[metric], target.expr


def test_every_metric_is_shown_or_said_not_to_be() -> None:
    """No metric of the gateway or the bridge is forgotten: the board has it, or the list says why not."""
    asked = {name for panel in read_board().panels for target in panel.targets for name in METRIC.findall(target.expr)}
    families = {PART.sub("", name) for name in read_metrics() if name.startswith("pdd_")}
    shown = {PART.sub("", name) for name in asked if name.startswith("pdd_")}
    listed = {name for names in NOT_SHOWN.values() for name in names}
    assert families == shown | listed
    assert not shown & listed


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
