"""compose.nixl.yaml tells vLLM what backends/README.md tells of NIXL, each engine by its own name, on its own GPU."""

import json
from typing import Any

import pytest

from tests.docker.files import ROOT, argv_of, image_of, option, read_compose, settings_of

ENGINES = ("p1", "rld1", "md1")


@pytest.fixture
def compose() -> dict[str, Any]:
    """The deployment on GPUs."""
    return read_compose("compose.yaml", "compose.nixl.yaml")


def test_the_link_has_the_path_of_the_engines(compose: dict[str, Any]) -> None:
    """All engines have NIXL's connector, and the gateway's link says so and has no bridge."""
    connectors = {
        json.loads(option(argv_of(compose["services"][name]), "--kv-transfer-config"))["kv_connector"]
        for name in ENGINES
    }
    link = settings_of(compose).links[0]
    assert connectors == {"NixlConnector"}
    assert (link.path, link.bridge) == ("nixl", None)


@pytest.mark.parametrize("name", ENGINES)
def test_options_are_documented(compose: dict[str, Any], name: str) -> None:
    """Every option is one that backends/README.md or `make e2e` gives to vLLM."""
    known = (ROOT / "backends" / "README.md").read_text(encoding="utf-8")
    known += (ROOT / "tests" / "e2e" / "kit.py").read_text(encoding="utf-8")
    assert all(word in known for word in argv_of(compose["services"][name]) if word.startswith("--"))
    assert all(key in known for key in compose["services"][name]["environment"] if key.startswith("VLLM"))


@pytest.mark.parametrize("name", ENGINES)
def test_engines_are_found_by_a_name_of_one_address(compose: dict[str, Any], name: str) -> None:
    """The side channel's name is an alias in the network that all engines are in, and in no other."""
    service = compose["services"][name]
    host = service["environment"]["VLLM_NIXL_SIDE_CHANNEL_HOST"]
    aliased = {network: (how or {}).get("aliases", []) for network, how in service["networks"].items()}
    assert [network for network, aliases in aliased.items() if host in aliases] == ["kv"]
    assert all("kv" in compose["services"][other]["networks"] for other in ENGINES)


def test_each_engine_has_its_own_gpu(compose: dict[str, Any]) -> None:
    """No GPU is given to two engines."""
    reservations = [compose["services"][name]["deploy"]["resources"]["reservations"]["devices"] for name in ENGINES]
    gpus = [gpu for (device,) in reservations for gpu in device["device_ids"]]
    assert len(set(gpus)) == len(ENGINES)


@pytest.mark.parametrize("name", ENGINES)
def test_memory_can_be_pinned(compose: dict[str, Any], name: str) -> None:
    """RDMA's needs are met: locked memory without bound, and the adapters."""
    service = compose["services"][name]
    assert service["ulimits"]["memlock"] == -1
    assert service["cap_add"] == ["IPC_LOCK"]
    assert service["devices"] == ["/dev/infiniband:/dev/infiniband"]


@pytest.mark.parametrize("name", ENGINES)
def test_nothing_is_built_under_a_foreign_name(compose: dict[str, Any], name: str) -> None:
    """The engines' image is pulled: the build of the reference engine is taken away."""
    assert image_of(compose["services"][name]) is None
    assert compose["services"][name]["image"].startswith("vllm/vllm-openai:v")
