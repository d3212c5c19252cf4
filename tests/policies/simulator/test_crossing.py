"""The simulated bridge: blocks cross once, waits, stops."""

import pytest

from policies.simulator.crossing import Crossing, SimulatedTransfer
from policies.simulator.models import WanLine
from policies.simulator.parts import BlockCache, EventQueue, SharedServer


class Bridge:
    """A line of 10 bytes a second, blocks of 10 bytes, and a log of arrivals."""

    def __init__(self) -> None:
        self.timeline = EventQueue()
        server = SharedServer(self.timeline, lambda jobs: 10.0 / jobs, most=100)
        self.crossing = Crossing(WanLine("a", "b", 10.0), server, BlockCache(100))
        self.log: list[tuple[str, float]] = []

    def fetch(self, name: str, *blocks: int) -> SimulatedTransfer | None:
        """Fetch blocks and log their arrival under ``name``."""
        return self.crossing.fetch(blocks, 10, lambda: self.log.append((name, self.timeline.now_s)))

    def want(self, name: str, *blocks: int) -> None:
        """Fetch blocks that need a transfer."""
        assert self.fetch(name, *blocks) is not None


def test_what_is_there_does_not_cross() -> None:
    """Blocks that the store has need no transfer; the others cross and are there afterwards."""
    bridge = Bridge()
    bridge.crossing.store.add((1, 2))
    assert bridge.fetch("none", 1, 2) is None
    assert bridge.fetch("one", 1, 2, 3) is not None
    bridge.timeline.run()
    assert bridge.log == [("one", 1.0)]
    assert bridge.fetch("again", 1, 2, 3) is None
    assert bridge.crossing.server.served == 10.0


def test_a_block_wanted_twice_crosses_once() -> None:
    """A second request waits for blocks on their way and moves only its own."""
    bridge = Bridge()
    bridge.fetch("first", 1, 2)
    bridge.fetch("second", 1, 2, 3)
    bridge.fetch("third", 1, 2)
    bridge.timeline.run()
    assert dict(bridge.log) == {"first": pytest.approx(3.0), "second": pytest.approx(3.0), "third": pytest.approx(3.0)}
    assert bridge.crossing.server.served == pytest.approx(30.0)


def test_a_stopped_transfer_moves_no_more() -> None:
    """Stopping ends the load at once, and its blocks can be fetched anew."""
    bridge = Bridge()
    transfer = bridge.crossing.fetch((1, 2), 10, lambda: None)
    assert transfer is not None
    bridge.timeline.plan(0.5, lambda: bridge.crossing.stop(transfer))
    bridge.timeline.plan(1.0, lambda: bridge.want("anew", 1))
    bridge.timeline.run()
    assert bridge.log == [("anew", 2.0)]
    assert bridge.crossing.server.served == pytest.approx(15.0)


def test_a_load_that_others_want_goes_on() -> None:
    """Stopping one of two that wait for a load only takes that one out."""
    bridge = Bridge()
    first = bridge.crossing.fetch((1, 2), 10, lambda: bridge.log.append(("first", 0.0)))
    second = bridge.crossing.fetch((1, 2), 10, lambda: bridge.log.append(("second", bridge.timeline.now_s)))
    assert first is not None
    assert second is not None
    bridge.timeline.plan(0.5, lambda: bridge.crossing.stop(first))
    bridge.timeline.run()
    assert bridge.log == [("second", 2.0)]


def test_stopping_without_an_own_load_or_after_its_end_does_nothing() -> None:
    """A transfer that only waits for others, or whose load is over, stops without touching the line."""
    bridge = Bridge()
    own = bridge.crossing.fetch((1,), 10, lambda: None)
    waiting = bridge.crossing.fetch((1, 2), 10, lambda: bridge.log.append(("waiting", 0.0)))
    only_waiting = bridge.crossing.fetch((2,), 10, lambda: bridge.log.append(("only", bridge.timeline.now_s)))
    assert own is not None
    assert waiting is not None
    assert only_waiting is not None
    bridge.crossing.stop(waiting)
    bridge.timeline.run()
    bridge.crossing.stop(own)
    bridge.crossing.stop(only_waiting)
    assert bridge.log == [("only", 2.0)]
    assert bridge.crossing.server.served == pytest.approx(20.0)
