"""Engines whose ranks are not as many in both regions: their KV crosses regrouped, and main decode reads all of it.

The reference engine stores its KV through LMCache, here as two tensor-parallel ranks would.
"""

from dataclasses import dataclass

import pytest

from backends.engines.reference.demo_model import MODEL_DIR
from gateway.demo.cluster import KV_CHUNK_TOKENS, Cluster, ClusterPlan, region_of, run_cluster
from tests.integration.forks import ForkedKit, Forker
from tests.integration.regions import RELAYED, open_front

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

WORDS, TOKENS = 300, 120


@dataclass
class RankedKit(ForkedKit):
    """Engines of the two regions store KV as so many ranks."""

    _forker: Forker
    ranks: dict[str, int]

    def arguments(self, cluster: Cluster, name: str, listen: str) -> list[str]:
        """See ``ReferenceKit``."""
        return [*super().arguments(cluster, name, listen), "--kv-ranks", str(self.ranks[region_of(name)])]


@pytest.mark.parametrize(("source", "dest"), [(2, 1), (1, 2)])
async def test_main_reads_what_other_ranks_made(forker: Forker, source: int, dest: int) -> None:
    """The answer is that of one engine, and main decode takes every full chunk of the prompt from its store."""
    plan = ClusterPlan(MODEL_DIR, rate_mbit=100.0, delay_ms=15.0, kit=RankedKit(forker, {"a": source, "b": dest}))
    async with run_cluster(plan, lambda _: None) as cluster:
        (link,) = cluster.settings("127.0.0.1:0")["links"]
        link |= {"world_size": source, "dest_world_size": dest}
        async with open_front(cluster, {"rules": RELAYED, "links": [link]}) as regions:
            with regions.relay_kept_to(TOKENS // 2, of=TOKENS):
                async with regions.ask(WORDS, TOKENS) as asked:
                    await asked.read()
            assert asked.done and asked.error is None
            assert asked.ids == await regions.alone(asked, TOKENS)
            assert (asked.roles[0], asked.roles[-1]) == ("P", "MD")
            full_chunks = len(asked.prompt_ids) // KV_CHUNK_TOKENS * KV_CHUNK_TOKENS
            assert full_chunks >= 4 * KV_CHUNK_TOKENS
            assert await cluster.taken_from_store("md1") == full_chunks
