"""The index without Redis."""

from collections.abc import AsyncGenerator, Sequence

import pytest

from gateway.index.types import CacheSpec
from tests.conformance.index_suite import TIMES, Changes, Clock, IndexSuite, Rig
from tests.fakes.memory_index import MemoryIndex


class TestMemoryIndex(IndexSuite):
    """The common behaviour."""

    @pytest.fixture
    async def rig(self) -> AsyncGenerator[Rig, None]:
        """Start a memory index."""
        changes, clock = Changes(), Clock()
        index = MemoryIndex(key=b"secret", predicted_ttl_s=100.0, times=TIMES, now=clock, on_change=changes)
        await index.start()
        rig = Rig(index, changes, clock)
        async with rig.resources:
            yield rig
            await index.aclose()


class Telling(MemoryIndex):
    """Counts what other processes would be told."""

    told = 0

    def _share_note(self, spec: CacheSpec, rank: int, block_keys: Sequence[int]) -> None:
        self.told += 1


def test_only_news_is_noted() -> None:
    """A prompt that was routed a moment ago is not told again; one that has aged, is longer or went elsewhere is."""
    clock = Clock()
    index = Telling(predicted_ttl_s=100.0, now=clock)
    index.add_instance(CacheSpec("p1", "m", 16, dp_size=2))
    prompt = list(range(64))
    index.note_routed("p1", "m", prompt)
    clock.now_s += 9
    index.note_routed("p1", "m", prompt)
    index.note_routed("p1", "m", prompt[:40])
    assert index.told == 1
    index.note_routed("p1", "m", prompt, rank=1)
    index.note_routed("p1", "m", [*prompt, *range(16)])
    assert index.told == 3
    clock.now_s += 2
    index.note_routed("p1", "m", prompt)
    index.note_routed("p1", "m", prompt)
    assert index.told == 3, "the longer one has told of the prompt, too"
    clock.now_s += 11
    index.note_routed("p1", "m", prompt)
    assert index.told == 4
    clock.now_s += 99
    assert index.lookup("m", [*prompt, 1])["p1"].tokens == 64


def test_a_prompt_whose_ids_change_is_named_anew() -> None:
    """Names are kept for the very same prompt under the same salt only."""
    index = MemoryIndex()
    index.add_instance(CacheSpec("p1", "m", 16))
    prompt = list(range(32))
    index.note_routed("p1", "m", prompt)
    assert index.lookup("m", prompt, salt="other")["p1"].tokens == 0
    prompt += range(16)
    index.note_routed("p1", "m", prompt)
    assert index.lookup("m", [*prompt, 1])["p1"].tokens == 48


async def test_a_long_prompt_is_named_ahead_as_it_is_named_at_once() -> None:
    """What was named beside the loop is what a lookup finds; short prompts and other salts are not."""
    index = MemoryIndex(key=b"secret")
    index.add_instance(CacheSpec("p1", "m", 16))
    prompt = list(range(100_016))
    index.note_routed("p1", "m", list(prompt), "salt")
    before = len(index._named)
    await index.name_ahead("m", prompt[:100], "salt")
    assert len(index._named) == before
    await index.name_ahead("m", prompt, "salt")
    await index.name_ahead("m", prompt, "salt")
    assert len(index._named) == before + 1
    assert index.lookup("m", prompt, "salt")["p1"].at_least_tokens == 100_000
    assert index.lookup("m", prompt, "other")["p1"].at_least_tokens == 0
    assert len(index._named) == before + 2
