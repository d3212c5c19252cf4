"""compose.vllm.yaml and compose.gpu.yaml tell vLLM and LMCache what the end-to-end tests tell them."""

import inspect
import json
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import pytest

from gateway.fleet.build import read_terms
from tests.docker.files import argv_of, option, ports_of, read_compose, settings_of
from tests.e2e import kit

ENGINES = {"p1": "a", "rld1": "a", "md1": "b"}


@pytest.fixture(params=["compose.vllm.yaml", "compose.gpu.yaml"])
def compose(request: pytest.FixtureRequest) -> dict[str, Any]:
    """A deployment with vLLM and LMCache servers."""
    return read_compose("compose.yaml", request.param)


def options_of(service: Mapping[str, Any]) -> set[str]:
    """The options that a service's program is given."""
    return {word for word in argv_of(service) if word.startswith("--")}


@pytest.mark.parametrize("name", [*ENGINES, "lmcache-a", "lmcache-b"])
def test_options_are_those_that_are_tested(compose: dict[str, Any], name: str) -> None:
    """No option is given that `make e2e` does not give: those are known to work with these versions."""
    source = inspect.getsource(kit)
    assert all(f'"{word}"' in source for word in options_of(compose["services"][name]))


@pytest.mark.parametrize("name", ENGINES)
def test_engines_serve_what_the_settings_name(compose: dict[str, Any], name: str) -> None:
    """Model, its name in the store and element type are those of the settings."""
    settings, argv = settings_of(compose), argv_of(compose["services"][name])
    model, link = settings.models[0], settings.links[0]
    assert option(argv, "--served-model-name") == model.name
    assert option(argv, "--model") == model.path == model.kv_name
    assert option(argv, "--dtype") == link.dtype
    assert read_terms(link).dialect == "lmcache-mp"


@pytest.mark.parametrize(("name", "region"), ENGINES.items())
def test_engines_use_their_regions_server(compose: dict[str, Any], name: str, region: str) -> None:
    """Each engine has its region's LMCache server, at the port where it listens, and waits for it."""
    service = compose["services"][name]
    transfer = json.loads(option(argv_of(service), "--kv-transfer-config"))
    server = transfer["kv_connector_extra_config"]
    assert server["lmcache.mp.host"] == f"tcp://lmcache-{region}"
    assert server["lmcache.mp.port"] in ports_of(compose["services"][f"lmcache-{region}"])
    assert f"lmcache-{region}" in service["depends_on"]
    assert set(service["networks"]) == {f"region-{region}"}


@pytest.mark.parametrize("region", ["a", "b"])
def test_servers_keep_their_kv_in_the_regions_store(compose: dict[str, Any], region: str) -> None:
    """The second tier is the region's own store, and chunks are as long as the gateway believes."""
    argv = argv_of(compose["services"][f"lmcache-{region}"])
    assert json.loads(option(argv, "--l2-adapter")) == {"type": "resp", "host": f"store-{region}", "port": 6379}
    assert int(option(argv, "--chunk-size")) == settings_of(compose).links[0].chunk_tokens


def test_engines_are_not_aborted_while_they_load(compose: dict[str, Any]) -> None:
    """The gateway is patient with engines of this version that would end otherwise."""
    assert all(engine.abort_grace_s > 0 for engine in settings_of(compose).engines)


def test_engines_share_a_gpu_with_their_servers() -> None:
    """Every engine and LMCache server has the same GPU, in one IPC namespace, and what engines take of it fits."""
    services = read_compose("compose.yaml", "compose.gpu.yaml")["services"]
    for name in (*ENGINES, "lmcache-a", "lmcache-b"):
        (device,) = services[name]["deploy"]["resources"]["reservations"]["devices"]
        assert device["device_ids"] == ["0"]
        assert services[name]["ipc"] == "host"
    assert sum(float(option(argv_of(services[name]), "--gpu-memory-utilization")) for name in ENGINES) < 0.9


def test_engines_on_one_gpu_start_one_after_the_other() -> None:
    """vLLM looks at how much memory is free, which must not change meanwhile."""
    services = read_compose("compose.yaml", "compose.gpu.yaml")["services"]
    for earlier, later in pairwise(ENGINES):
        assert services[later]["depends_on"][earlier] == {"condition": "service_healthy"}
