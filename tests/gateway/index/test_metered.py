"""Metrics of the index."""

import re
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

import gateway.index.types
from gateway.index.metered import MeteredIndex
from gateway.index.types import COUNTERS, CacheSpec
from tests.conformance.index_suite import MODEL, PROMPT, TIMES, Changes, Clock, IndexSuite, Rig
from tests.fakes.memory_index import MemoryIndex


class TestMeteredIndex(IndexSuite):
    """The common behaviour, through the decorator."""

    @pytest.fixture
    async def rig(self) -> AsyncGenerator[Rig, None]:
        """Start a metered memory index."""
        changes, clock = Changes(), Clock()
        inner = MemoryIndex(predicted_ttl_s=100.0, times=TIMES, now=clock, on_change=changes)
        index = MeteredIndex(inner, CollectorRegistry())
        await index.start()
        rig = Rig(index, changes, clock)
        async with rig.resources:
            yield rig
            await index.aclose()


def test_state_is_scraped() -> None:
    """A scrape shows each instance's blocks and every counter; unknown models make no series."""
    registry = CollectorRegistry()
    index = MeteredIndex(MemoryIndex(), registry)
    index.add_instance(CacheSpec("p1", MODEL, 16))
    index.note_routed("p1", MODEL, PROMPT)
    index.lookup(MODEL, PROMPT)
    index.lookup("of-a-client", PROMPT)
    text = generate_latest(registry).decode()
    assert 'pdd_index_blocks{instance="p1"} 10.0' in text
    assert 'pdd_index_known{instance="p1"} 1.0' in text
    assert 'pdd_index_age_seconds{instance="p1"}' in text
    assert 'pdd_index_lookup_seconds_count{model="qwen"} 1.0' in text
    assert "pdd_index_lookups_total 2.0" in text
    assert "of-a-client" not in text
    assert "pdd_index_redis_up 1.0" in text
    assert all(f"pdd_index_{name}_total" in text for name in COUNTERS)


def test_every_counter_is_documented() -> None:
    """Whatever the package counts has a meaning in the table, and the table has nothing else."""
    folder = Path(gateway.index.types.__file__).parent
    sources = "".join(path.read_text() for path in folder.glob("*.py") if path.name != "counters.py")
    counted = set(re.findall(r'_counters\["(\w+)"', sources)) | set(re.findall(r'"(\w+)" if verdict', sources))
    assert counted == set(COUNTERS)
