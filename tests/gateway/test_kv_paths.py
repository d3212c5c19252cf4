"""Which KV path a link's settings amount to, and which settings are none."""

import asyncio
import time
from typing import Any

import msgspec
import pytest

from backends.engines.reference.demo_model import MODEL_DIR
from backends.kv.bridge.client import BridgePath
from backends.kv.bridge.fan import FannedPath
from backends.kv.prefetch import PrefetchPath
from backends.kv.pull import EnginePull, NixlPull
from gateway.app import Gateway
from gateway.config.fleet_settings import BadSettings, LinkSettings
from gateway.config.settings import Settings, check_references, parse_settings
from gateway.fleet.build import build_link, find_carriers
from gateway.fleet.links import Links
from gateway.fleet.pools import Pools
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
    found = gateway.links.get("a", "b", "demo")
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
        (
            {"path": "prefetch", "cache_server": URL, "dialect": "lmcache"},
            r"links\[0\].hash_seed: .* PYTHONHASHSEED, or from a random number",
        ),
        ({"bridge": URL, "models": ["other"]}, r"links\[0\].models: 'other' is not in models"),
        ({"bridge": URL, "models": []}, r"links\[0\].models"),
        ({"bridge": URL, "name": "p1"}, r"links\[0\].name"),
        ({"bridge": URL, "hash_seed": 0}, r"links\[0\].hash_seed: dialect lmcache-mp has none"),
        ({"bridge": URL, "dialect": "lmcache", "hash_seed": -1}, r"links\[0\].hash_seed"),
        ({"bridge": URL, "dialect": "lmcache", "hash_seed": "random"}, r"it may be no_vllm - at .*hash_seed"),
    ],
)
def test_link_that_is_none(link: dict[str, Any], message: str) -> None:
    """A path without what it needs, or with what it does not use, stops the start and is named."""
    with pytest.raises(BadSettings, match=message):
        settings_of(link)


def test_a_seed_can_be_learnt_by_canaries_only() -> None:
    """Dialect lmcache may stand alone where canaries learn the seed; without them it stops the start, as ever."""
    settings = settings_of({"bridge": URL, "dialect": "lmcache"})
    assert settings.links[0].hash_seed is None
    with pytest.raises(BadSettings, match="no canaries over a bridge learn it"):
        check_references(msgspec.structs.replace(settings, canary_interval_s=0))


@pytest.mark.parametrize(
    ("links", "message"),
    [
        ([{}, {}], "'a->b' stands twice"),
        (
            [{}, {"name": "a->b/other"}],
            r"links\[1\].models: a->b between the same regions is for all other models, too",
        ),
        (
            [{"name": "a->b/x", "models": ["demo"]}, {"name": "a->b/y", "models": ["demo"]}],
            r"links\[1\].models: a->b/x between the same regions is for 'demo', too",
        ),
    ],
)
def test_two_links_of_one_model_are_refused(links: list[dict[str, Any]], message: str) -> None:
    """Between two regions a model has one link: another for the same stops the start, and both are named."""
    settings = settings_of({"bridge": URL})
    given = [msgspec.convert({"source": "a", "dest": "b", "bridge": URL} | one, LinkSettings) for one in links]
    with pytest.raises(BadSettings, match=message):
        check_references(msgspec.structs.replace(settings, links=tuple(given)))


def test_a_link_for_one_model_goes_before_that_for_all() -> None:
    """Each model's KV takes its own link, and the others' that which names none; each link has terms of its own."""
    settings = settings_of({"bridge": URL})
    wide = {"source": "a", "dest": "b", "bridge": URL, "name": "a->b/wide", "models": ["other"], "chunk_tokens": 512}
    raw = msgspec.to_builtins(settings)
    other = raw["models"][0] | {"name": "other"}
    settings = parse_settings(raw | {"models": [*raw["models"], other], "links": [*raw["links"], wide]})
    links = Links([build_link(one, Pools([], time.monotonic)) for one in settings.links], 60.0)
    assert [links.of(model)["a", "b"].name for model in ("demo", "other", "third")] == ["a->b", "a->b/wide", "a->b"]
    assert [links.chunk_tokens(model) for model in ("demo", "other")] == [256, 512]
    assert [one.name for one in find_carriers("other", settings.links)] == ["a->b/wide"]
