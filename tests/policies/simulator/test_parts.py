"""Moving parts: order of events, shared speed, block caches."""

from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.simulator.parts import BlockCache, EventQueue, SharedServer


def serve(most: int = 10) -> tuple[EventQueue, SharedServer, list[tuple[str, float]]]:
    """A server of 10 units a second in all, and a log of (name, time)."""
    timeline = EventQueue()
    return timeline, SharedServer(timeline, lambda jobs: 10.0 / jobs, most), []


def test_actions_run_in_order_of_time_then_of_planning() -> None:
    """Earlier actions run first, like ones in the order of planning, and the past means now."""
    timeline, log = EventQueue(), []
    timeline.plan(2.0, lambda: log.append(("b", timeline.now_s)))
    timeline.plan(2.0, lambda: timeline.plan(1.0, lambda: log.append(("d", timeline.now_s))))
    timeline.plan(2.0, lambda: log.append(("c", timeline.now_s)))
    timeline.plan(1.0, lambda: log.append(("a", timeline.now_s)))
    timeline.run()
    assert log == [("a", 1.0), ("b", 2.0), ("c", 2.0), ("d", 2.0)]


def test_jobs_share_the_speed() -> None:
    """Two jobs get half the speed each until the shorter is done."""
    timeline, server, log = serve()
    server.add(10.0, lambda: log.append(("short", timeline.now_s)))
    server.add(30.0, lambda: log.append(("long", timeline.now_s)))
    timeline.run()
    assert dict(log) == {"short": pytest.approx(2.0), "long": pytest.approx(4.0)}
    assert server.served == pytest.approx(40.0)


def test_jobs_beyond_the_places_wait_in_order() -> None:
    """With one place jobs run one after the other, and each tells when it starts."""
    timeline, server, log = serve(most=1)
    for name in "abc":
        server.add(
            10.0,
            lambda name=name: log.append((name, timeline.now_s)),  # type: ignore[misc]
            lambda name=name: log.append((name.upper(), timeline.now_s)),  # type: ignore[misc]
        )
    assert (server.running, server.waiting, server.backlog) == (1, 2, 30.0)
    timeline.run()
    assert log == [("A", 0.0), ("a", 1.0), ("B", 1.0), ("b", 2.0), ("C", 2.0), ("c", 3.0)]


def test_a_removed_job_frees_its_place_and_counts_what_it_got() -> None:
    """Taking a running job out lets the next one in; taking a waiting one out costs nothing."""
    timeline, server, log = serve(most=1)
    running = server.add(10.0, lambda: log.append(("running", timeline.now_s)))
    waiting = server.add(10.0, lambda: log.append(("waiting", timeline.now_s)))
    server.add(10.0, lambda: log.append(("last", timeline.now_s)))
    timeline.plan(0.5, lambda: log.append(("left", server.left(running))))
    timeline.plan(0.5, lambda: log.append(("whole", server.left(waiting))))
    timeline.plan(0.5, lambda: server.remove(waiting))
    timeline.plan(0.5, lambda: server.remove(running))
    timeline.run()
    assert log == [("left", 5.0), ("whole", 10.0), ("last", 1.5)]
    assert server.served == pytest.approx(15.0)
    assert server.backlog == 0.0


def test_removal_of_a_shared_job_speeds_up_the_rest() -> None:
    """After one of two running jobs is taken out the other has the whole speed."""
    timeline, server, log = serve()
    gone = server.add(100.0, lambda: log.append(("gone", timeline.now_s)))
    server.add(10.0, lambda: log.append(("kept", timeline.now_s)))
    timeline.plan(1.0, lambda: server.remove(gone))
    timeline.run()
    assert dict(log) == {"kept": pytest.approx(1.5)}


@given(jobs=st.lists(st.tuples(st.floats(0, 10), st.floats(0, 50)), min_size=1, max_size=30), most=st.integers(1, 5))
def test_all_work_is_done_and_nothing_is_faster_than_alone(jobs: list[tuple[float, float]], most: int) -> None:
    """Every job ends once, not sooner than it would alone, and the work served is the work added."""
    timeline, server, _ = serve(most)
    ends: list[float] = []

    def start(work: float) -> None:
        begun = timeline.now_s
        server.add(work, lambda: ends.append(timeline.now_s - begun - work / 10.0))

    for at_s, work in jobs:
        timeline.plan(at_s, lambda work=work: start(work))  # type: ignore[misc]
    timeline.run()
    assert len(ends) == len(jobs)
    assert min(ends) >= -1e-6
    assert server.served == pytest.approx(sum(work for _, work in jobs))
    assert (server.running, server.waiting) == (0, 0)


def test_a_cache_finds_the_leading_blocks() -> None:
    """Reach ends at the first missing block."""
    cache = BlockCache(10)
    cache.add((1, 2, 3))
    assert [cache.reach(blocks) for blocks in ((), (1, 2, 3, 4), (1, 9, 3), (9,))] == [0, 3, 1, 0]
    assert 2 in cache
    assert 9 not in cache


@given(paths=st.lists(st.lists(st.integers(0, 2), max_size=6), max_size=20), most=st.integers(1, 8))
def test_a_cache_drops_tails_first(paths: list[list[int]], most: int) -> None:
    """However prefixes are shared, what is kept is whole prefixes, within the bound, and reach is exact."""
    cache, ids = BlockCache(most), OrderedDict[tuple[int, ...], int]()
    for path in paths:
        blocks = [ids.setdefault(tuple(path[: end + 1]), len(ids)) for end in range(len(path))]
        cache.add(blocks)
        for earlier in paths:
            known = [ids.get(tuple(earlier[: end + 1]), -1) for end in range(len(earlier))]
            there = [block in cache for block in known]
            assert there == sorted(there, reverse=True)
            assert cache.reach(known) == sum(there)
    assert sum(block in cache for block in ids.values()) <= most
