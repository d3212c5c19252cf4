"""The Kubernetes files are valid, agree with each other and with the code."""

import functools
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from gateway.auth.exposure import check_exposure, find_admin_access
from gateway.config.settings import parse_settings
from gateway.fleet.discovery import ROLE
from tests.docker.files import DOCKER, ROOT, host_port, parse_pdd, read_image, read_yaml
from tests.docker.paths import served_paths

FOLDER = DOCKER / "k8s"
SINCE = "1.30"
"""The oldest Kubernetes that has all that is used: `preStop.sleep` is on by default from there."""
OVERLAYS = ("gateway", "bridge")
NOT_RESOURCES = {"kustomization.yaml", "gateway.yaml"}
EVENT_PORTS = {5557, 5558}


@functools.cache
def read_all(overlay: str) -> tuple[Any, ...]:
    """Every resource of an overlay, as its kustomization lists them."""
    return tuple(_resources(FOLDER / overlay))


def _resources(folder: Path) -> list[Any]:
    found: list[Any] = []
    for name in read_yaml(folder / "kustomization.yaml")["resources"]:
        path = (folder / name).resolve()
        found += _resources(path) if path.is_dir() else yaml.safe_load_all(path.read_text(encoding="utf-8"))
    return found


def one(overlay: str, kind: str, name: str | None = None) -> Any:
    """The only resource of a kind, or the only one of that name."""
    (found,) = [
        resource
        for resource in read_all(overlay)
        if resource["kind"] == kind and name in (None, resource["metadata"]["name"])
    ]
    return found


def pod_of(overlay: str) -> Any:
    """The pod of the overlay's Deployment."""
    return one(overlay, "Deployment")["spec"]["template"]["spec"]


def container_of(overlay: str) -> Any:
    """Its only container."""
    (container,) = pod_of(overlay)["containers"]
    return container


def command_of(overlay: str) -> tuple[str, Any]:
    """What the container runs."""
    return parse_pdd([*read_image("Dockerfile").entrypoint, *container_of(overlay)["args"]])


@pytest.mark.parametrize("overlay", OVERLAYS)
@pytest.mark.parametrize("version", [SINCE, "1.34"])
def test_resources_are_valid(overlay: str, version: str) -> None:
    """Every resource is what its schema says, with no field that Kubernetes does not know."""
    for resource in read_all(overlay):
        kubernetes_validate.validate(resource, version, strict=True)


def test_an_unknown_field_is_not_valid() -> None:
    """The check of the resources can fail."""
    resource = one("gateway", "Service") | {"spek": {}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(resource, SINCE, strict=True)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_kustomize_builds(overlay: str) -> None:
    """Where kubectl is installed, kustomize makes of the folder what is to be applied, in one namespace."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not installed")
    done = subprocess.run([kubectl, "kustomize", FOLDER / overlay], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    built = list(yaml.safe_load_all(done.stdout))
    namespaces = {resource["metadata"].get("namespace") for resource in built if resource["kind"] != "Namespace"}
    assert namespaces == {one(overlay, "Namespace")["metadata"]["name"]}
    image = next(r for r in built if r["kind"] == "Deployment")["spec"]["template"]["spec"]["containers"][0]["image"]
    assert image == f"pdd-gateway:{_project_version()}"


def test_every_file_is_used() -> None:
    """No resource lies beside the kustomizations without being listed."""
    for folder in (path for path in FOLDER.iterdir() if path.is_dir()):
        listed = {name for name in read_yaml(folder / "kustomization.yaml")["resources"] if name.endswith(".yaml")}
        assert {path.name for path in folder.iterdir()} - NOT_RESOURCES == listed


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_images_have_the_projects_version(overlay: str) -> None:
    """The kustomization gives the container's image the project's version."""
    images = {image["name"]: image["newTag"] for image in read_yaml(FOLDER / overlay / "kustomization.yaml")["images"]}
    assert images == {container_of(overlay)["image"]: _project_version()}


def _project_version() -> str:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert isinstance(version, str)
    return version


def test_settings_are_accepted() -> None:
    """The gateway takes the ConfigMap's file."""
    settings = parse_settings(read_yaml(FOLDER / "gateway" / "gateway.yaml"))
    check_exposure(settings, settings.listen.rpartition(":")[0])
    assert settings.redis_url is None
    assert {engine.role for engine in settings.engines} == {"MD"}
    assert [cluster.region for cluster in settings.discovery] == [link.source for link in settings.links]


def test_the_gateway_may_do_what_discovery_does() -> None:
    """Its account may list and watch pods in its own namespace, which discovery does, and nothing more."""
    role, binding = one("gateway", "Role"), one("gateway", "RoleBinding")
    assert role["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    account = one("gateway", "ServiceAccount")["metadata"]["name"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account}]
    assert pod_of("gateway")["serviceAccountName"] == account
    (cluster,) = parse_settings(read_yaml(FOLDER / "gateway" / "gateway.yaml")).discovery
    assert (cluster.namespace, cluster.api) == (None, None)


def test_engines_are_found_by_the_label_that_the_policy_guards() -> None:
    """The pods that discovery takes for engines are those that only the gateway may ask."""
    policy = one("gateway", "NetworkPolicy", "pdd-engines")
    (expression,) = policy["spec"]["podSelector"]["matchExpressions"]
    (cluster,) = parse_settings(read_yaml(FOLDER / "gateway" / "gateway.yaml")).discovery
    assert expression["key"] == ROLE == cluster.selector


def test_the_config_map_is_mounted_where_the_command_reads() -> None:
    """The generated ConfigMap's file is the one that `--config` names, and models are where the settings say."""
    (generated,) = read_yaml(FOLDER / "gateway" / "kustomization.yaml")["configMapGenerator"]
    volumes = {volume["name"]: volume for volume in pod_of("gateway")["volumes"]}
    mounts = {mount["mountPath"]: mount for mount in container_of("gateway")["volumeMounts"]}
    command, options = command_of("gateway")
    assert command == "serve"
    assert options.config.name in generated["files"]
    assert volumes[mounts[str(options.config.parent)]["name"]]["configMap"]["name"] == generated["name"]
    for model in parse_settings(read_yaml(FOLDER / "gateway" / "gateway.yaml")).models:
        assert Path(model.path).parent == Path("/models")
        assert "/models" in mounts


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_ports_are_those_of_the_process(overlay: str) -> None:
    """Container port, Service and scrape annotation lead to where the process listens."""
    command, options = command_of(overlay)
    listens = {"http": options.listen}
    if command == "serve":
        settings = parse_settings(read_yaml(FOLDER / overlay / "gateway.yaml"))
        find_admin_access(settings)
        listens = {"http": settings.listen, "admin": settings.admin.listen}
    served = {name: listen.rpartition(":") for name, listen in listens.items()}
    assert {host for host, _, _ in served.values()} == {"0.0.0.0"}
    declared = {entry["name"]: entry["containerPort"] for entry in container_of(overlay)["ports"]}
    assert declared == {name: int(port) for name, (_, _, port) in served.items()}
    assert [entry["targetPort"] for entry in one(overlay, "Service")["spec"]["ports"]] == ["http"]
    annotations = one(overlay, "Deployment")["spec"]["template"]["metadata"]["annotations"]
    scraped = "admin" if "admin" in served else "http"
    assert annotations["prometheus.io/port"] == served[scraped][2]
    assert annotations["prometheus.io/path"] in served_paths()["serve admin" if scraped == "admin" else command]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_probes_ask_what_is_served(overlay: str) -> None:
    """Each probe's path is one of the process; only readiness asks whether requests can be served."""
    probes = {name: probe for name, probe in container_of(overlay).items() if name.endswith("Probe")}
    assert {"livenessProbe", "readinessProbe"} <= probes.keys()
    for name, probe in probes.items():
        assert probe["httpGet"]["port"] == "http"
        assert probe["httpGet"]["path"] in served_paths()[command_of(overlay)[0]]
        assert name == "readinessProbe" or probe["httpGet"]["path"] == "/health"
    assert overlay != "gateway" or probes["readinessProbe"]["httpGet"]["path"] == "/ready"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_labels_select_the_pods(overlay: str) -> None:
    """Everything that selects pods selects those of the Deployment."""
    deployment = one(overlay, "Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert one(overlay, "Service")["spec"]["selector"].items() <= labels.items()
    for resource in read_all(overlay):
        if resource["kind"] == "PodDisruptionBudget":
            assert resource["spec"]["selector"]["matchLabels"].items() <= labels.items()
        if resource["kind"] == "HorizontalPodAutoscaler":
            assert resource["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_containers_can_do_little(overlay: str) -> None:
    """Not root, as the image's user, nothing writable but what is mounted, no capabilities, no token without need."""
    pod, container = pod_of(overlay), container_of(overlay)
    user, _, group = read_image("Dockerfile").user.partition(":")
    assert pod.get("automountServiceAccountToken", True) is (overlay == "gateway")
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert (pod["securityContext"]["runAsUser"], pod["securityContext"]["runAsGroup"]) == (int(user), int(group))
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {"cpu", "memory"} <= container["resources"]["requests"].keys()


def test_the_gateway_may_drain() -> None:
    """A pod is given the time that endpoints need to forget it, and then all of drain_s."""
    drain_s = parse_settings(read_yaml(FOLDER / "gateway" / "gateway.yaml")).drain_s
    forget_s = container_of("gateway")["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod_of("gateway")["terminationGracePeriodSeconds"] > forget_s + drain_s


def test_redis_and_the_secret_are_named_by_secrets() -> None:
    """REDIS_URL, which the gateway reads, and the secret that its settings name come from Secrets."""
    variables = container_of("gateway")["env"]
    auth = parse_settings(read_yaml(FOLDER / "gateway" / "gateway.yaml")).auth
    assert [variable["name"] for variable in variables] == ["REDIS_URL", auth.secret_env]
    assert all(set(variable["valueFrom"]) == {"secretKeyRef"} for variable in variables)


def test_stores_are_named_by_a_secret() -> None:
    """The variables in the bridge's arguments are those that its Secret fills."""
    _, options = command_of("bridge")
    names = {f"$({variable['name']})" for variable in container_of("bridge")["env"]}
    assert {options.source, options.dest} == names
    assert all(set(variable["valueFrom"]) == {"secretKeyRef"} for variable in container_of("bridge")["env"])


def test_the_bridge_asks_for_the_key_that_the_gateway_shows() -> None:
    """The bridge's keys are a file of a Secret; the variable that the gateway's link names comes from another."""
    _, options = command_of("bridge")
    mounts = {mount["mountPath"]: mount["name"] for mount in container_of("bridge")["volumeMounts"]}
    folder, _, name = options.key_file.rpartition("/")
    volumes = {volume["name"]: volume["secret"]["secretName"] for volume in pod_of("bridge")["volumes"]}
    assert (volumes[mounts[folder]], name) == ("pdd-bridge-keys", "keys")
    (link,) = parse_settings(read_yaml(FOLDER / "gateway" / "gateway.yaml")).links
    (shown,) = container_of("gateway")["envFrom"]
    assert (shown["secretRef"]["name"], link.bridge_key_env) == ("pdd-bridge-key", "PDD_BRIDGE_KEY")


def test_only_chosen_networks_reach_the_bridge() -> None:
    """The policy is the bridge's, opens its port alone and not to everybody, and lets it out to names and stores."""
    policy = one("bridge", "NetworkPolicy")["spec"]
    labels = one("bridge", "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    assert set(policy["policyTypes"]) == {"Ingress", "Egress"}
    (rule,) = policy["ingress"]
    assert rule["from"] and all(source for source in rule["from"])
    ports = {entry["containerPort"] for entry in container_of("bridge")["ports"]}
    assert {port["port"] for port in rule["ports"]} == ports
    assert {port["port"] for out in policy["egress"] for port in out["ports"]} == {53, 6379}


def test_only_the_gateway_reaches_engines_and_their_events() -> None:
    """The policy opens the ports that the settings name, to the gateway's pods alone."""
    policy = one("gateway", "NetworkPolicy", "pdd-engines")["spec"]
    (rule,) = policy["ingress"]
    (source,) = rule["from"]
    labels = one("gateway", "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert source["podSelector"]["matchLabels"].items() <= labels.items()
    settings = parse_settings(read_yaml(FOLDER / "gateway" / "gateway.yaml"))
    asked = {host_port(url)[1] for e in settings.engines for url in (e.url, e.kv_events, e.kv_replay) if url}
    assert {port["port"] for port in rule["ports"]} == asked
    assert asked >= EVENT_PORTS


def test_the_operators_pages_are_not_for_everybody() -> None:
    """The API's port is open to all, that of metrics and timelines to chosen namespaces alone."""
    policy = one("gateway", "NetworkPolicy", "pdd-gateway")["spec"]
    labels = one("gateway", "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    ports = {entry["name"]: entry["containerPort"] for entry in container_of("gateway")["ports"]}
    sources = {port["port"]: rule.get("from") for rule in policy["ingress"] for port in rule["ports"]}
    assert sources.keys() == set(ports.values())
    assert sources[ports["http"]] is None
    assert sources[ports["admin"]]


def test_gateways_scale_together() -> None:
    """There are at least two gateways, and a disruption leaves one."""
    scaler, budget = one("gateway", "HorizontalPodAutoscaler"), one("gateway", "PodDisruptionBudget")
    assert scaler["spec"]["minReplicas"] > budget["spec"]["minAvailable"] >= 1
    assert "replicas" not in one("gateway", "Deployment")["spec"]
    assert one("bridge", "Deployment")["spec"]["replicas"] == 1
