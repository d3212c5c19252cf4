"""The mirror: walks, predictions and admission, against plain sets."""

from array import array

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from backends.kv.subscriber import EventSource
from gateway.index.mirror import CacheDelta, Mirror, PredictedBlocks, RankBlocks
from gateway.index.types import CacheSpec

SOURCE = EventSource("tcp://127.0.0.1:1")


def ignore() -> None:
    """Do nothing on a change."""


@settings(deadline=None)
@given(st.integers(0, 40), st.integers(0, 40), st.sets(st.integers(100, 200)))
def test_walk_finds_the_end(prompt_blocks: int, held: int, others: set[int]) -> None:
    """The walk tells how far the prompt is held, whatever else is held."""
    blocks = RankBlocks(set(range(held)) | others)
    assert blocks.walk(list(range(prompt_blocks))[::-1]) == min(prompt_blocks, held)


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 8), st.integers(0, 15)), max_size=40),
    st.integers(4, 40),
)
@example([(0, 1, 0), (0, 5, 0)], 4)
def test_predictions_expire_from_their_ends(steps: list[tuple[int, int, int]], limit: int) -> None:
    """A prompt's blocks stand until the latest note of them is over; within the limit that is exact, beyond it less."""
    predicted = PredictedBlocks(limit)
    until: dict[int, float] = {}
    now, full = 0.0, False
    for prompt, blocks, pause in steps:
        now += pause
        keys = [prompt * 100 + i for i in range(blocks)]
        predicted.expire(now)
        predicted.note(array("Q", keys), now + 20)
        until.update(dict.fromkeys(keys, now + 20))
        until = {key: end for key, end in until.items() if end > now}
        full |= len(until) > limit
        for name in range(3):
            run = [name * 100 + i for i in range(9)]
            model = next((i for i, key in enumerate(run) if key not in until), 9)
            walked = predicted.walk(run[::-1])
            assert all(key in predicted.until for key in run[:walked])
            assert walked <= model if full else walked == model
    predicted.expire(now + 21)
    assert not predicted.until


def test_admission() -> None:
    """A known instance goes on; a changed spec or boot id starts anew; a boot id learnt late does not."""
    mirror = Mirror(lambda: 0.0, ignore)
    spec = CacheSpec("i", "m", 16, (SOURCE,))
    assert mirror.admit(spec)
    mirror.apply("i", 0, CacheDelta(held=[1]))
    booted = CacheSpec("i", "m", 16, (SOURCE,), boot_id="a")
    assert not mirror.admit(booted)
    assert not mirror.admit(spec)
    assert mirror.stats()["i"].blocks == 1
    assert mirror.admit(CacheSpec("i", "m", 16, (SOURCE,), boot_id="b"))
    assert mirror.stats()["i"].blocks == 0
    assert mirror.admit(CacheSpec("i", "other", 16, (SOURCE,), boot_id="b"))
    assert not mirror.of_model("m")


def test_changes_of_untracked_instances_are_ignored() -> None:
    """Late news of an instance that is gone, or of a rank that it does not have, is no error."""
    mirror = Mirror(lambda: 0.0, ignore)
    mirror.apply("gone", 0, CacheDelta(held=[1]))
    mirror.set_known("gone", True)
    mirror.predict("gone", 0, [1], 1.0)
    mirror.forget("gone")
    mirror.load("gone", [], True)
    mirror.admit(CacheSpec("i", "m", 16, (SOURCE,)))
    mirror.apply("i", 1, CacheDelta(held=[1]))
    mirror.predict("i", 0, [1], 1.0)
    assert mirror.stats()["i"].blocks == 0


@pytest.mark.parametrize(("block_size", "dp_size"), [(0, 1), (-16, 1), (16, 0)])
def test_instance_of_unknown_size_is_refused(block_size: int, dp_size: int) -> None:
    """Without a block size no hit can be told."""
    with pytest.raises(ValueError, match="at least 1"):
        CacheSpec("i", "m", block_size, dp_size=dp_size)


def test_age_of_the_last_news() -> None:
    """Statistics tell how long ago an instance's entries last changed."""
    now = 5.0
    mirror = Mirror(lambda: now, ignore)
    mirror.admit(CacheSpec("i", "m", 16, (SOURCE,)))
    mirror.admit(CacheSpec("p", "m", 16))
    assert mirror.stats()["i"].update_age_s is None
    mirror.apply("i", 0, CacheDelta(held=[1, 2]))
    mirror.predict("p", 0, [1, 2, 3], 9.0)
    now = 7.0
    stats = mirror.stats()
    assert (stats["i"].update_age_s, stats["i"].blocks) == (2.0, 2)
    assert (stats["p"].blocks, stats["p"].predicted, stats["p"].known) == (3, True, True)
    now = 9.0
    assert mirror.stats()["p"].blocks == 0


def test_what_has_expired_counts_for_nothing_though_it_is_still_being_dropped() -> None:
    """Many notes that expire together are dropped over several calls, and none of them is a hit meanwhile."""
    predicted = PredictedBlocks(10_000_000)
    for number in range(5):
        predicted.note(range(number * 40_000, (number + 1) * 40_000), 1.0 + number / 100)
    predicted.note(range(300_000, 300_010), 9.0)
    predicted.expire(2.0)
    assert len(predicted.until) > 100_000
    assert [predicted.walk(range(start + 9, start - 1, -1)) for start in (0, 160_000, 300_000)] == [0, 0, 10]
    for _ in range(3):
        predicted.expire(2.0)
    assert len(predicted.until) == 10
