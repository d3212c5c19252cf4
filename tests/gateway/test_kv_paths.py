"""Which KV path a link's settings amount to, and which settings are none."""

import asyncio
from typing import Any

import pytest

from backends.engines.reference.demo_model import MODEL_DIR
from backends.kv.bridge.client import BridgePath
from backends.kv.bridge.fan import FannedPath
from backends.kv.prefetch import PrefetchPath
from backends.kv.pull import EnginePull, NixlPull
from gateway.app import Gateway
from gateway.config.fleet_settings import BadSettings
from gateway.config.settings import Settings, parse_settings
from tests.fakes.index import KnownIndex
from tests.valkey import make_away

URL = "http://127.0.0.1:9"


def settings_of(link: dict[str, Any]) -> Settings:
    """A configuration of one P, one MD and a link between them."""
    engines = [
        {"id": role.lower(), "role": role, "model": "demo", "region": region, "url": URL}
        for role, region in (("P", "a"), ("MD", "b"))
    ]
    model = {"name": "demo", "path": str(MODEL_DIR), "kv_bytes_per_token": 4096}
    return parse_settings({"models": [model], "engines": engines, "links": [{"source": "a", "dest": "b"} | link]})


@pytest.mark.parametrize(
    ("link", "path_type"),
    [
        ({"bridge": URL}, BridgePath),
        ({"path": "bridge", "bridge": URL}, BridgePath),
        ({"bridge": URL, "dialect": "lmcache", "hash_seed": 0}, BridgePath),
        ({"bridge": URL, "dialect": "lmcache", "hash_seed": "no_vllm"}, BridgePath),
        ({"bridge": URL, "bridge_workers": ["http://127.0.0.1:10"]}, FannedPath),
        ({"path": "prefetch", "cache_server": URL}, PrefetchPath),
        ({"path": "engine_pull"}, EnginePull),
        ({"path": "nixl", "lease_s": 12}, NixlPull),
        ({"bridge": URL, "relay_kv": "nixl", "lease_s": 12}, BridgePath),
    ],
)
async def test_path_of_a_link(link: dict[str, Any], path_type: type) -> None:
    """Each path is what its name says, with the settings that belong to it."""
    gateway = await asyncio.to_thread(Gateway, settings_of(link), KnownIndex(), make_away())
    found = gateway.links.get("a", "b")
    assert found is not None and type(found.path) is path_type
    assert found.lease_s == link.get("lease_s", 30.0)
    assert found.view().lends is ("nixl" in (link.get("path"), link.get("relay_kv")))
    for served in gateway.served.values():
        served.close()


@pytest.mark.parametrize(
    ("link", "message"),
    [
        ({}, r"links\[0\].bridge: path bridge needs a bridge"),
        ({"path": "nixl", "bridge": URL}, r"links\[0\].bridge: path nixl has no bridge"),
        ({"path": "prefetch"}, r"links\[0\].cache_server: path prefetch needs a cache_server"),
        ({"bridge": URL, "cache_server": URL}, r"links\[0\].cache_server: path bridge has no cache_server"),
        ({"path": "carrier_pigeon"}, r"links\[0\].path"),
        ({"path": "nixl", "lease_s": 0}, r"links\[0\].lease_s"),
        ({"bridge": URL, "world_size": 0}, r"links\[0\].world_size"),
        ({"path": "nixl", "bridge_workers": [URL]}, r"links\[0\].bridge_workers: path nixl has no bridge"),
        ({"path": "nixl", "bridge_key_env": "K"}, r"links\[0\].bridge_key_env: path nixl has no bridge"),
        ({"path": "nixl", "dest_world_size": 2}, r"links\[0\].dest_world_size: path nixl does not regroup KV heads"),
        (
            {"bridge": URL, "dialect": "lmcache", "hash_seed": 0, "kv_layout": "packed"},
            r"links\[0\].kv_layout: LMCache inside the engines .* knows split only",
        ),
        ({"bridge": URL, "dialect": "lmcache"}, r"links\[0\].hash_seed: .* PYTHONHASHSEED, or from a random number"),
        ({"bridge": URL, "hash_seed": 0}, r"links\[0\].hash_seed: dialect lmcache-mp has none"),
        ({"bridge": URL, "dialect": "lmcache", "hash_seed": -1}, r"links\[0\].hash_seed"),
        ({"bridge": URL, "dialect": "lmcache", "hash_seed": "random"}, r"it may be no_vllm - at .*hash_seed"),
    ],
)
def test_link_that_is_none(link: dict[str, Any], message: str) -> None:
    """A path without what it needs, or with what it does not use, stops the start and is named."""
    with pytest.raises(BadSettings, match=message):
        settings_of(link)
