"""Links whose settings say nothing of the KV: what engines store is learnt, for each model, and moved exactly."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from backends.engines.reference.demo_model import MODEL_DIR
from gateway.demo.cluster import MODEL, Cluster, ClusterPlan, run_cluster
from gateway.demo.scenarios import run_alone
from gateway.fleet.kv_terms import KvTerms
from tests.gateway.cli.fleet import pdd
from tests.integration.forks import ForkedKit, Forker
from tests.integration.regions import RELAYED, Asked, Regions, eventually, open_front

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

WORDS, TOKENS = 300, 120
PATIENCE_S = 30.0
BLOCK_TOKENS = 16
OTHER = "other"
STORED = {MODEL: {"--kv-chunk": "96"}, OTHER: {"--kv-chunk": "128", "--kv-ranks": "2", "--dtype": "bfloat16"}}
"""What the models' engines are started with beside the defaults of ``pdd engine``."""


class StoringKit(ForkedKit):
    """Engines whose names end in 2 serve another model."""

    def __init__(self, forker: Forker) -> None:
        super().__init__(forker)
        self.stored: Mapping[str, Mapping[str, str]] = STORED

    def arguments(self, cluster: Cluster, name: str, listen: str) -> list[str]:
        """See ``ReferenceKit``."""
        arguments = super().arguments(cluster, name, listen)
        model = OTHER if name.endswith("2") else MODEL
        for option, value in {"--served-model-name": model, **self.stored[model]}.items():
            if option in arguments:
                arguments[arguments.index(option) + 1] = value
            else:
                arguments += [option, value]
        return arguments


def silent_link(cluster: Cluster, **fields: Any) -> dict[str, Any]:
    """The link with nothing said of the KV."""
    (link,) = cluster.settings("127.0.0.1:0")["links"]
    return {key: link[key] for key in ("source", "dest", "bridge", "rate_mbit")} | fields


async def learnt(regions: Regions, model: str, chunk_tokens: int) -> KvTerms:
    """What the link has learnt of a model, once it has this chunk size and its engines are not held any more."""

    async def is_so() -> bool:
        instances = regions.gateway.pools.of_model(model)
        is_known = not any(one.is_apart(regions.gateway.pools.clock()) for one in instances)
        return is_known and regions.gateway.links.chunk_tokens(model) == chunk_tokens

    assert await eventually(is_so, PATIENCE_S), regions.gateway.status.find_degraded()
    link = regions.gateway.links.get("a", "b", model)
    assert link is not None
    return link.kv.of(model)


async def ask_exactly(regions: Regions, model: str, prefill: str, main: str, chunk_tokens: int) -> Asked:
    """Ask for a relayed answer; it must be one engine's, and MD must take all of the prompt's full chunks."""
    taken = await regions.cluster.taken_from_store(main)
    with regions.relay_kept_to(TOKENS // 2, of=TOKENS):
        async with regions.ask(WORDS, TOKENS, model=model) as asked:
            await asked.read()
    assert asked.done and asked.error is None
    assert (asked.roles[0], asked.roles[-1]) == ("P", "MD")
    assert asked.ids == await run_alone(regions.cluster.children[prefill].url, model, asked.prompt_ids, TOKENS)
    full_tokens = len(asked.prompt_ids) // chunk_tokens * chunk_tokens
    assert full_tokens >= 3 * chunk_tokens
    # Prompts begin alike, so MD may have the first block of an earlier one.
    assert full_tokens - BLOCK_TOKENS <= await regions.cluster.taken_from_store(main) - taken <= full_tokens
    return asked


async def test_a_link_learns_what_settings_leave_open(
    forker: Forker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With nothing but its bridge a link moves what both sides store, also after a restart with other chunks.

    Both use other than the defaults: LMCache in process, chunks of 96 tokens, float32.
    """
    kit = StoringKit(forker)
    plan = ClusterPlan(MODEL_DIR, rate_mbit=100.0, delay_ms=15.0, kit=kit)
    async with run_cluster(plan, lambda _: None) as cluster:
        settings = cluster.settings("127.0.0.1:0") | {"links": [silent_link(cluster)]}
        try:
            changes = {"rules": RELAYED, "links": settings["links"], "canary_interval_s": 600}
            async with open_front(cluster, changes) as regions:
                kv = await learnt(regions, MODEL, 96)
                assert (kv.dialect, kv.hash_seed, kv.dtype, kv.pinned) == ("lmcache", None, "float32", frozenset())
                await ask_exactly(regions, MODEL, "p1", "md1", 96)
                page = regions.gateway.view.state()["links"]["a->b"]["kv"]
                assert "chunks of 96 tokens" in page[MODEL] and "learnt of p1 and md1" in page[MODEL]
                await tells_what_it_learnt(tmp_path / "gateway.yaml", settings, capsys)

                kit.stored = STORED | {MODEL: {"--kv-chunk": "128"}}
                for name in ("p1", "rld1", "md1"):
                    cluster.children[name].kill()
                for name in ("p1", "rld1", "md1"):
                    await regions.restart(name)
                await regions.healed()
                await learnt(regions, MODEL, 128)
                await ask_exactly(regions, MODEL, "p1", "md1", 128)
                assert regions.gateway.status.find_degraded() == []
        finally:  # also those that were started again, which the cluster does not know
            await asyncio.gather(*(child.stop() for child in cluster.children.values()))


async def tells_what_it_learnt(config: Path, settings: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """`pdd probe` says what holds and of whom it was learnt; KV crosses."""
    await asyncio.to_thread(config.write_text, yaml.safe_dump(settings))
    capsys.readouterr()
    assert await pdd("probe", "--config", config, "--json") == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["faults"] == []
    assert "dialect lmcache, hash seed no_vllm" in found["link_says"]
    assert found["link_says"].endswith("learnt of p1 and md1")


async def test_two_models_of_other_shapes_cross_between_two_regions(forker: Forker) -> None:
    """Chunk size, dtype, ranks and bytes differ by model; each is relayed exactly, over one link or one for each."""
    plan = ClusterPlan(MODEL_DIR, rate_mbit=100.0, delay_ms=15.0, counts=(2, 2, 2), kit=StoringKit(forker))
    async with run_cluster(plan, lambda _: None) as cluster:
        settings = cluster.settings("127.0.0.1:0")
        (model,) = settings["models"]
        model |= {"adapter": False}
        engines = [one | {"model": OTHER if one["id"].endswith("2") else MODEL} for one in settings["engines"]]
        changes = {
            "rules": RELAYED,
            "canary_interval_s": 600,
            "models": [model, model | {"name": OTHER, "kv_dtype": "bfloat16"}],
            "engines": engines,
        }
        links = [silent_link(cluster), silent_link(cluster, name="a->b/second", models=[OTHER])]
        for count in (1, 2):
            await are_exact(cluster, changes | {"links": links[:count]}, seed=100 * count)


async def are_exact(cluster: Cluster, changes: dict[str, Any], seed: int) -> None:
    """Put a gateway before two models' engines: what each needs is learnt, and both are relayed at once."""
    async with open_front(cluster, changes, seed) as regions:
        first, other = await learnt(regions, MODEL, 96), await learnt(regions, OTHER, 128)
        assert (first.dtype, first.world_size, other.dtype, other.world_size) == ("float32", 1, "bfloat16", 2)
        await asyncio.gather(
            ask_exactly(regions, MODEL, "p1", "md1", 96), ask_exactly(regions, OTHER, "p2", "md2", 128)
        )
        assert regions.gateway.status.find_degraded() == []
        sizes, facts = regions.gateway.sizes, regions.gateway.service.models
        counted = [sizes.of(name, facts[name].kv_bytes_per_token) for name in (MODEL, OTHER)]
        assert counted[0] == 2 * counted[1]
        assert len(regions.gateway.links.all) == len(changes["links"])
