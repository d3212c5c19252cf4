"""The example for KEDA asks for metrics that exist, in the form that KEDA takes."""

from typing import Any, Literal

import msgspec
import yaml

from policies.types import Role
from tests.docker.files import DOCKER, read_yaml
from tests.docker.metrics import METRIC, read_metrics, selected_labels

FOLDER = DOCKER / "k8s" / "keda"


class Strict(msgspec.Struct, forbid_unknown_fields=True):
    """As much of KEDA's definition as is used, by its documentation."""


class Target(Strict):
    """What is scaled; a Deployment where no kind is given."""

    name: str


class Fallback(Strict):
    """What holds while there is no figure."""

    failureThreshold: int
    replicas: int


class Asked(Strict):
    """Of the Prometheus scaler; all values are texts."""

    serverAddress: str
    query: str
    threshold: str
    ignoreNullValues: Literal["true", "false"]


class Trigger(Strict):
    """One scaler."""

    type: Literal["prometheus"]
    metricType: Literal["AverageValue"]
    metadata: Asked


class Spec(Strict):
    """Of a ScaledObject."""

    scaleTargetRef: Target
    pollingInterval: int
    minReplicaCount: int
    maxReplicaCount: int
    fallback: Fallback
    advanced: dict[Literal["horizontalPodAutoscalerConfig"], Any]
    triggers: list[Trigger]


class ScaledObject(Strict):
    """One role's scaling."""

    apiVersion: Literal["keda.sh/v1alpha1"]
    kind: Literal["ScaledObject"]
    metadata: dict[Literal["name"], str]
    spec: Spec


def read_objects() -> list[ScaledObject]:
    """All of the example."""
    text = (FOLDER / "scaling.yaml").read_text(encoding="utf-8")
    return msgspec.convert(list(yaml.safe_load_all(text)), list[ScaledObject])


def test_each_role_is_scaled_by_what_it_wants() -> None:
    """One query for each role, of a metric and labels that the gateway exposes, for the example's model."""
    (model,) = read_yaml(DOCKER / "k8s" / "gateway" / "gateway.yaml")["models"]
    asked = []
    for one in read_objects():
        (trigger,) = one.spec.triggers
        query = trigger.metadata.query
        assert METRIC.findall(query) == ["pdd_wanted_instances"]
        assert {label for _, label in selected_labels(query)} == read_metrics()["pdd_wanted_instances"]
        assert f'model="{model["name"]}"' in query
        asked += [role for role in Role if f'role="{role.value}"' in query]
    assert asked == list(Role)


def test_a_figure_that_is_missing_is_not_none_wanted() -> None:
    """The metric is a number of instances; without it neither none nor the fewest are kept."""
    for one in read_objects():
        spec, (trigger,) = one.spec, one.spec.triggers
        assert (trigger.metadata.threshold, trigger.metadata.ignoreNullValues) == ("1", "false")
        assert 0 < spec.minReplicaCount < spec.fallback.replicas < spec.maxReplicaCount
