"""Families of models whose KV is laid out in ways of their own, relayed over real vLLM and LMCache: exact ids."""

import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from backends.engines.reference.demo_model import MODEL_DIR
from gateway.demo.cluster import MODEL, Cluster, ClusterPlan, run_cluster
from gateway.operator.probe import probe_links
from tests.compatibility import relayed_families
from tests.e2e.figures import Figures
from tests.e2e.kit import RATE_MBIT, VllmKit, free_gb
from tests.e2e.tiny import make_adapter, make_hybrid, make_mla
from tests.integration.regions import RELAYED, Regions, open_front

pytestmark = [
    pytest.mark.slow,
    pytest.mark.e2e,
    pytest.mark.families,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="session"),
]

WORDS = 900
TOKENS = 120
CHUNK_TOKENS = 256
NEEDED_GB = 7
ADAPTER = "law"
LEAST_DIFFERENT_IDS = 8
"""In an answer that follows from its context."""
LEAST_GAP, MOST_PROMPTS = 0.001, 40
"""Between the logits of the two likeliest ids, ten times what steps of another shape change. Random weights come nearer
to a tie in every fourth answer."""


@dataclass(frozen=True, slots=True)
class Family:
    """What is special about a family's engines and about the gateway's settings for them."""

    make_model: Callable[[Path], Path] = lambda folder: MODEL_DIR
    options: Callable[[str, Path], list[str]] = lambda name, folder: []
    served: tuple[str, ...] = (MODEL,)
    changes: Callable[[dict[str, Any]], dict[str, Any]] = lambda settings: {}
    environment: Mapping[str, str] = field(default_factory=dict)
    server_options: tuple[str, ...] = ()


def _serve_adapter(name: str, folder: Path) -> list[str]:
    module = {"name": ADAPTER, "path": str(make_adapter(folder / name)), "base_model_name": MODEL}
    return ["--enable-lora", "--max-lora-rank", "8", "--lora-modules", json.dumps(module)]


def _with_adapter(settings: dict[str, Any]) -> dict[str, Any]:
    (base,) = settings["models"]
    engines = settings["engines"]
    adapted = [engine | {"id": f"{engine['id']}-{ADAPTER}", "model": ADAPTER} for engine in engines]
    return {"models": [base | {"adapter": False}, base | {"name": ADAPTER}], "engines": engines + adapted}


def _two_ranks(name: str, folder: Path) -> list[str]:
    if name != "md1":
        return []
    # A port of its own for each rank, on the address that VLLM_HOST_IP names.
    events = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": "tcp://*:0",
        "replay_endpoint": "tcp://*:0",
    }
    return ["--data-parallel-size", "2", "--kv-events-config", json.dumps(events | {"topic": ""})]


def _with_ranks(settings: dict[str, Any]) -> dict[str, Any]:
    told = {"kv_events": "auto", "kv_replay": None}
    return {"engines": [engine | (told if engine["id"] == "md1" else {}) for engine in settings["engines"]]}


def _two_shards(name: str, folder: Path) -> list[str]:
    return ["--tensor-parallel-size", "2"] if name == "p1" else []


def _with_shards(settings: dict[str, Any]) -> dict[str, Any]:
    (link,) = settings["links"]
    return {"links": [link | {"world_size": 2, "dest_world_size": 1}]}


# As with GPUs: the way that LMCache takes on CPUs unless told otherwise knows one group of layers.
GROUPS = {"LMCACHE_MP_TRANSFER_MODE": "lmcache_driven"}
FAMILIES = {
    "mla": Family(make_mla, lambda name, folder: ["--attention-backend", "CPU_MLA"]),  # AMX's knows no float32
    "hybrid": Family(make_hybrid, environment=GROUPS),
    "hybrid_groups": Family(
        make_hybrid,
        changes=lambda settings: {"links": [settings["links"][0] | {"separate_object_groups": True}]},
        environment=GROUPS,
        server_options=("--separate-object-groups",),
    ),
    "lora": Family(options=_serve_adapter, served=(MODEL, ADAPTER), changes=_with_adapter),
    "dp2": Family(options=_two_ranks, changes=_with_ranks),
    "tp_reshard": Family(options=_two_shards, changes=_with_shards),
}


def _relay_beside_prefill(cluster: Cluster) -> dict[str, Any]:
    """The cluster's settings, with P a second time as RLD: an engine less to start."""
    settings = cluster.settings("127.0.0.1:0")
    (prefill,) = [engine for engine in settings["engines"] if engine["role"] == "P"]
    settings["engines"].append(prefill | {"id": "rld1", "role": "RLD"})
    return settings


@dataclass(frozen=True, slots=True)
class Stage:
    """Two regions that serve a family."""

    name: str
    family: Family
    regions: Regions


@pytest_asyncio.fixture(loop_scope="session", scope="module", params=relayed_families())
async def stage(
    request: pytest.FixtureRequest, python: Path, figures: Figures, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Stage]:
    """One P that is RLD as well, and one MD."""
    if free_gb() < NEEDED_GB:
        reason = f"needs {NEEDED_GB} GB of free memory"
        figures.add_family(request.param, not_run=reason)
        pytest.skip(f"NOT RUN: {reason}")
    family, folder = FAMILIES[request.param], tmp_path_factory.mktemp(request.param)
    model = family.make_model(folder / "model")
    kit = VllmKit(
        python,
        model,
        CHUNK_TOKENS,
        lambda name: family.options(name, folder),
        family.environment,
        family.server_options,
    )
    plan = ClusterPlan(model, rate_mbit=RATE_MBIT, delay_ms=15.0, counts=(1, 0, 1), kit=kit)
    async with run_cluster(plan, logging.getLogger(__name__).info) as cluster:
        settings = _relay_beside_prefill(cluster)
        changes = {"engines": settings["engines"], "rules": RELAYED} | family.changes(settings)
        async with open_front(cluster, changes) as regions:
            yield Stage(request.param, family, regions)


async def find_prompt(stage: Stage) -> list[dict[str, str]]:
    """Return a chat whose greedy answer has many ids, and no tie that another order of sums would decide."""
    for _ in range(MOST_PROMPTS):
        messages = [{"role": "user", "content": stage.regions.fresh_prompt(WORDS)}]
        if all([await has_clear_answer(stage, served, messages) for served in stage.family.served]):
            return messages
    raise AssertionError(f"none of {MOST_PROMPTS} prompts has an answer of many ids without a tie")


async def has_clear_answer(stage: Stage, served: str, messages: list[dict[str, str]]) -> bool:
    """Say so of the answer of P alone, which shares no KV."""
    body = {"model": served, "messages": messages, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    asked = body | {"logprobs": True, "top_logprobs": 2, "cache_salt": f"gap-{served}"}
    prefill = stage.regions.cluster.children["p1"].url
    response = await stage.regions.client.post(f"{prefill}/v1/chat/completions", json=asked, timeout=120)
    tokens = response.raise_for_status().json()["choices"][0]["logprobs"]["content"]
    likeliest = [sorted((one["logprob"] for one in token["top_logprobs"]), reverse=True) for token in tokens]
    is_varied = len({tuple(token["bytes"]) for token in tokens}) >= LEAST_DIFFERENT_IDS
    return is_varied and all(first - second >= LEAST_GAP for first, second in likeliest)


async def test_a_family_is_relayed_exactly(stage: Stage, figures: Figures) -> None:
    """P, RLD and MD make one engine's ids together, and MD computes none of the prompt's full chunks again.

    Where there are two names for a base, both are asked the same.
    """
    regions, answers = stage.regions, []
    messages = await find_prompt(stage)
    for served in stage.family.served:
        before = await regions.cluster.taken_from_store("md1")
        with regions.relay_kept_to(TOKENS // 2, of=TOKENS):
            async with regions.ask(tokens=TOKENS, model=served, messages=messages) as asked:
                await asked.read()
        await regions.gateway.aligner.drained()
        cached = await regions.cluster.taken_from_store("md1") - before
        full = len(asked.prompt_ids) // CHUNK_TOKENS * CHUNK_TOKENS
        alone = await regions.alone(asked, TOKENS, served, cache_salt=f"apart-{served}")
        figures.add_family(
            stage.name, tokens_identical=asked.ids == alone, md_cached_tokens=cached, full_chunk_tokens=full
        )
        assert asked.error is None and asked.ids == alone
        assert set(asked.roles) == {"P", "RLD", "MD"}
        assert len(set(asked.ids)) >= LEAST_DIFFERENT_IDS
        assert cached >= full - 1
        answers.append(asked.ids)
    assert len(set(map(tuple, answers))) == len(answers)


async def test_a_link_learns_a_family(stage: Stage) -> None:
    """With a link that says nothing of the KV `pdd probe` learns the family's ranks and groups, and KV crosses."""
    cluster = stage.regions.cluster
    settings = _relay_beside_prefill(cluster)
    (link,) = settings["links"]
    silent = {key: link[key] for key in ("source", "dest", "bridge", "rate_mbit")}
    changes = {"engines": settings["engines"]} | stage.family.changes(settings) | {"links": [silent]}
    async with open_front(cluster, changes, seed=100) as regions:
        gateway = regions.gateway
        found = await probe_links(
            gateway.served, gateway.pools, gateway.links, gateway.find_crossing, gateway.canary_tokens
        )
        assert {probe.model: probe.faults for probe in found} == {served: [] for served in stage.family.served}
        for probe in found:
            kv = gateway.links.all[0].kv.of(probe.model)
            assert (kv.dialect, kv.chunk_tokens) == ("lmcache-mp", CHUNK_TOKENS)
            assert kv.has_groups is (stage.name == "hybrid_groups")
            assert (kv.world_size, kv.dest_world_size) == (2 if stage.name == "tp_reshard" else 1, 1)
