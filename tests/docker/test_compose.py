"""The compose files name only services, ports, options, settings and files that exist, and agree with each other."""

import re
import tomllib
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
import yaml

from backends.engines.reference.demo_model import MODEL_DIR
from gateway.auth.exposure import check_exposure
from gateway.fleet.kv_size import size_kv
from tests.docker.files import (
    DOCKER,
    ROOT,
    Unusable,
    argv_of,
    host_port,
    image_of,
    parse_pdd,
    ports_of,
    read_compose,
    read_yaml,
    settings_of,
    wan_routes,
)
from tests.docker.paths import served_paths

STACKS = [("compose.yaml",), *(("compose.yaml", f"compose.{kind}.yaml") for kind in ("vllm", "gpu", "nixl"))]
ROLES = {"P": "prefill", "RLD": "relay", "MD": "main"}
SEES_BOTH = {"wan", "prometheus"}


@pytest.fixture(params=STACKS, ids="+".join)
def compose(request: pytest.FixtureRequest) -> dict[str, Any]:
    """A deployment: one or more compose files, merged."""
    return read_compose(*request.param)


def networks_of(compose: Mapping[str, Any], service: str) -> set[str]:
    """The networks that a service is in."""
    return set(compose["services"][service]["networks"])


def check_reachable(compose: Mapping[str, Any], start: str, url: str) -> None:
    """Fail unless a service can reach a URL."""
    host, port = host_port(url)
    assert host in compose["services"], url
    assert networks_of(compose, start) & networks_of(compose, host), f"{start} cannot reach {url}"
    assert port in ports_of(compose["services"][host]), f"{host} does not listen at {port}"


def test_is_valid_compose(compose: dict[str, Any]) -> None:
    """Nothing stands in the files that Compose does not know; `docker compose config` itself needs Docker's plugin."""
    compose_spec = pytest.importorskip("compose_spec")
    parsed = compose_spec.PyCompose.from_yaml(yaml.safe_dump(compose))
    assert set(parsed.service_names()) == set(compose["services"])
    parsed.validate()


def test_an_unknown_key_is_not_valid() -> None:
    """The check of the files can fail."""
    compose_spec = pytest.importorskip("compose_spec")
    compose = read_compose("compose.yaml")
    compose["services"]["wan"]["helthcheck"] = {}
    with pytest.raises(ValueError, match="helthcheck"):
        compose_spec.PyCompose.from_yaml(yaml.safe_dump(compose))


def test_every_pdd_command_is_understood(compose: dict[str, Any]) -> None:
    """Each `pdd` command line is one that the command's own parser takes."""
    commands = [argv for argv in map(argv_of, compose["services"].values()) if argv[:1] == ["pdd"]]
    seen = {parse_pdd(argv)[0] for argv in commands}
    assert {"serve", "wan", "bridge"} <= seen


def test_an_unknown_option_is_not_understood() -> None:
    """The check of the commands can fail."""
    with pytest.raises(Unusable, match="--colour"):
        parse_pdd(["pdd", "wan", "--rate-mbit", "1", "--route", "a:1=b:2", "--colour", "red"])


def test_everything_the_gateway_asks_is_there(compose: dict[str, Any]) -> None:
    """Whatever the settings name is a service that the gateway reaches, at a port that it serves."""
    settings = settings_of(compose)
    urls = [url for engine in settings.engines for url in (engine.url, engine.kv_events, engine.kv_replay)]
    urls += [link.bridge for link in settings.links if link.path == "bridge"] + [settings.redis_url]
    for url in urls:
        assert url is not None
        check_reachable(compose, "gateway", url)


def test_the_link_leads_to_services_of_the_other_region(compose: dict[str, Any]) -> None:
    """Each port of the link ends at a service in one of its networks, at a port that this service serves."""
    for host, port in wan_routes(compose["services"]["wan"]).values():
        check_reachable(compose, "wan", f"tcp://{host}:{port}")


def test_regions_meet_only_at_the_link(compose: dict[str, Any]) -> None:
    """No service but the link and the monitoring is in both regions, and neither region has another way out."""
    inside = {service for service in compose["services"] if {"region-a", "region-b"} <= networks_of(compose, service)}
    assert inside == SEES_BOTH
    assert all(compose["networks"][region]["internal"] for region in ("region-a", "region-b"))


def test_engines_are_where_the_settings_say(compose: dict[str, Any]) -> None:
    """Engines of the other region are asked through the link, the gateway's own directly, each under its role."""
    services, routes = compose["services"], wan_routes(compose["services"]["wan"])
    for engine in settings_of(compose).engines:
        host, port = host_port(engine.url)
        through_link = host == "wan"
        service = routes[port][0] if through_link else host
        assert through_link == (engine.region != "a")
        assert service == engine.id
        assert f"region-{engine.region}" in services[service]["networks"]
        argv = argv_of(services[service])
        if argv[0] == "pdd":
            assert parse_pdd(argv)[1].role == ROLES[engine.role]


def test_engines_and_settings_agree_on_the_kv(compose: dict[str, Any]) -> None:
    """Model name, chunk size, element type and store of each reference engine are those of the settings."""
    settings = settings_of(compose)
    link, model = settings.links[0], settings.models[0]
    engines = [parse_pdd(argv_of(s))[1] for s in compose["services"].values() if argv_of(s)[:2] == ["pdd", "engine"]]
    for options in engines:
        assert (options.kv_chunk, options.dtype) == (link.chunk_tokens, link.dtype)
        assert (options.served_model_name, str(options.model)) == (model.name, model.path)
        region = "b" if options.role == "main" else "a"
        assert host_port(options.kv_store) == (f"store-{region}", 6379)
        assert (link.dialect, link.hash_seed) == ("lmcache", "no_vllm")
    config = msgspec.json.decode((MODEL_DIR / "config.json").read_bytes())
    assert link.dtype is not None
    assert size_kv(config, model.kv_dtype) == size_kv(config, link.dtype)


def test_the_bridge_pulls_over_the_link(compose: dict[str, Any]) -> None:
    """The bridge reads region A's store through the link and writes to its own region's."""
    _, options = parse_pdd(argv_of(compose["services"]["bridge"]))
    host, port = host_port(options.source)
    assert (host, wan_routes(compose["services"]["wan"])[port]) == ("wan", ("store-a", 6379))
    assert host_port(options.dest) == ("store-b", 6379)


def test_the_assumed_rate_is_the_links(compose: dict[str, Any]) -> None:
    """Until the bridge has measured the link, the gateway assumes the rate that the link has; NIXL goes around it."""
    _, options = parse_pdd(argv_of(compose["services"]["wan"]))
    link = settings_of(compose).links[0]
    assert (link.rate_mbit == options.rate_mbit) == (link.path == "bridge")


def test_health_checks_ask_what_is_served(compose: dict[str, Any]) -> None:
    """Each health check asks a path that the service's program has, at the port where it listens."""
    for name, service in compose["services"].items():
        image = image_of(service)
        text = " ".join(service.get("healthcheck", {}).get("test") or (image.check if image else []))
        if "http" not in text:
            assert image is None
            continue
        found = re.search(r"http://127\.0\.0\.1:(\d+)(/\w+)", text)
        assert found is not None, name
        argv = argv_of(service)
        program = argv[1] if argv[0] == "pdd" else next(word for word in argv if "." in word)
        own_ports = ports_of(service)
        if program == "wan":
            own_ports = {int(parse_pdd(argv)[1].control.rpartition(":")[2])}
        assert int(found[1]) in own_ports, name
        assert found[2] in served_paths()[program], name


def test_what_others_wait_for_has_a_health_check(compose: dict[str, Any]) -> None:
    """A service that is waited for until it is healthy can be healthy."""
    for service in compose["services"].values():
        for name, how in service.get("depends_on", {}).items():
            other = compose["services"][name]
            image = image_of(other)
            assert how == {"condition": "service_healthy"}
            assert other.get("healthcheck") or (image and image.check), name


def test_stores_are_bounded_and_state_is_kept(compose: dict[str, Any]) -> None:
    """KV stores evict within a bound; what gateways share is never evicted."""
    for name, policy in (("store-a", "allkeys-lru"), ("store-b", "allkeys-lru"), ("state", "noeviction")):
        argv = argv_of(compose["services"][name])
        assert argv[argv.index("--maxmemory-policy") + 1] == policy
        assert re.fullmatch(r"\d+[mg]b", argv[argv.index("--maxmemory") + 1])


def test_images_are_pinned(compose: dict[str, Any]) -> None:
    """Every image has a version; those that are built here have the project's."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    for name, service in compose["services"].items():
        _, _, tag = service["image"].rpartition(":")
        assert re.match(r"v?\d+\.\d+\.\d+", tag), f"{name}: {service['image']}"
        if service.get("build"):
            assert tag == project


def test_mounted_files_exist(compose: dict[str, Any]) -> None:
    """Whatever is mounted from the repository is there; named volumes are declared."""
    for service in compose["services"].values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (DOCKER / source).resolve().exists(), volume
                assert volume.endswith(":ro")
            else:
                assert source in compose["volumes"]


def test_builds_start_from_files_that_exist(compose: dict[str, Any]) -> None:
    """Each build names a Dockerfile of this folder, with the repository's root as context."""
    for service in compose["services"].values():
        if build := service.get("build"):
            assert (DOCKER / build["context"]).resolve() == ROOT
            assert (ROOT / build["dockerfile"]).is_file()


def test_containers_can_do_little(compose: dict[str, Any]) -> None:
    """Roots are read-only, no capabilities are left, and ports are published on this machine only."""
    for name, service in compose["services"].items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert "no-new-privileges:true" in service["security_opt"]
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))


def test_published_ports_are_served(compose: dict[str, Any]) -> None:
    """What is published leads to a port that the service serves, and the service is in the network of the host."""
    for name, service in compose["services"].items():
        for port in service.get("ports", []):
            assert int(port.rpartition(":")[2]) in ports_of(service)
            assert "front" in networks_of(compose, name)


def test_the_gateway_starts_without_keys(compose: dict[str, Any]) -> None:
    """The gateway does not refuse to be open inside its container; outside, the port is this machine's alone."""
    settings = settings_of(compose)
    check_exposure(settings, settings.listen.rpartition(":")[0])
    assert settings.auth.open


def test_the_gateway_may_drain(compose: dict[str, Any]) -> None:
    """The gateway is given longer to stop than running answers may take."""
    grace_s = int(compose["services"]["gateway"]["stop_grace_period"].removesuffix("s"))
    assert grace_s > settings_of(compose).drain_s


def test_prometheus_scrapes_services(compose: dict[str, Any]) -> None:
    """Each target is a service that Prometheus reaches; gateway, bridge and all engines are among them."""
    seen = set()
    for job in read_yaml(DOCKER / "prometheus.yaml")["scrape_configs"]:
        for group in job["static_configs"]:
            for target in group["targets"]:
                check_reachable(compose, "prometheus", f"http://{target}")
                seen.add(target.partition(":")[0])
    assert seen == {"gateway", "bridge", *(engine.id for engine in settings_of(compose).engines)}
