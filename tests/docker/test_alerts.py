"""The alert rules ask for metrics that exist, Prometheus loads them, and each fires when it should."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.docker.files import DOCKER, read_compose, read_yaml
from tests.docker.metrics import METRIC, TARGET_LABELS, group_labels, read_metrics, selected_labels

ALERTS = DOCKER / "prometheus" / "alerts.yaml"
CASES = Path(__file__).with_name("alert_cases.yaml")


def read_alerts() -> list[dict[str, Any]]:
    """All alert rules."""
    return [rule for group in read_yaml(ALERTS)["groups"] for rule in group["rules"]]


@pytest.fixture
def promtool() -> str:
    """Prometheus's own checker."""
    found = os.environ.get("PROMTOOL") or shutil.which("promtool")
    if found is None:
        pytest.skip("NOT RUN: no promtool is here; install Debian's `prometheus`, or name one in PROMTOOL")
    return found


@pytest.mark.parametrize("rule", read_alerts(), ids=lambda rule: rule["alert"])
def test_alert_asks_for_what_exists(rule: dict[str, Any]) -> None:
    """An alert's metrics and the labels that it groups, selects and tells by are exposed."""
    exposed, expr = read_metrics(), rule["expr"]
    asked = METRIC.findall(expr)
    assert asked
    assert set(asked) <= exposed.keys()
    labels = TARGET_LABELS.union(*(exposed[name] for name in asked))
    assert group_labels(expr) <= labels
    assert all(label in TARGET_LABELS | exposed[metric] for metric, label in selected_labels(expr))
    told = " ".join(rule["annotations"].values())
    assert set(re.findall(r"\$labels\.(\w+)", told)) <= group_labels(expr)
    assert set(METRIC.findall(told)) <= exposed.keys()


def test_alerts_have_names_of_their_own_and_say_how_bad_they_are() -> None:
    """No two alerts are called alike; each has a severity, and words for who is woken."""
    names = [rule["alert"] for rule in read_alerts()]
    assert len(set(names)) == len(names)
    for rule in read_alerts():
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert {"summary", "description"} <= rule["annotations"].keys()


def test_prometheus_loads_the_alerts() -> None:
    """The configuration names the file where Compose mounts it, beside the configuration as in the repository."""
    mounted = dict(v.split(":")[:2] for v in read_compose("compose.yaml")["services"]["prometheus"]["volumes"])
    (named,) = read_yaml(DOCKER / "prometheus.yaml")["rule_files"]
    config = Path(mounted["./prometheus.yaml"])
    assert config.parent / named == Path(mounted["./prometheus"]) / ALERTS.name
    assert (DOCKER / named).resolve() == ALERTS


def test_each_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    """What promtool tries covers every alert both ways."""
    checks = [check for case in read_yaml(CASES)["tests"] for check in case["promql_expr_test"]]
    names = {rule["alert"] for rule in read_alerts()}
    for fires in (True, False):
        tried = [check["expr"] for check in checks if bool(check["exp_samples"]) is fires]
        assert {name for expr in tried for name in re.findall(r'alertname="(\w+)"', expr)} == names


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "rules", str(ALERTS)),
        ("check", "config", str(DOCKER / "prometheus.yaml")),
        ("test", "rules", str(CASES)),
    ],
    ids=["rules", "config", "cases"],
)
def test_promtool_is_content(promtool: str, arguments: tuple[str, ...]) -> None:
    """Prometheus reads rules and configuration, and each alert fires in its case only."""
    done = subprocess.run([promtool, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
