"""The simulated bridge: blocks cross once, waits, stops."""

import pytest

from policies.simulator.crossing import Crossing, SimulatedTransfer
from policies.simulator.fleet import WanLine
from policies.simulator.parts import BlockCache, EventQueue, SharedServer


class Bridge:
    """A line of 10 bytes a second, blocks of 10 bytes, and a log of arrivals."""

    def __init__(self) -> None:
        self.timeline = EventQueue()
        server = SharedServer(self.timeline, lambda jobs: 10.0 / jobs, most=100)
        self.crossing = Crossing(WanLine("a", "b", 10.0), server, BlockCache(100))
        self.log: list[tuple[str, float]] = []

    def fetch(self, name: str, *blocks: int, reuse: bool = True) -> SimulatedTransfer:
        """Fetch blocks and log their arrival under ``name``."""
        transfer = SimulatedTransfer(lambda: self.log.append((name, self.timeline.now_s)))
        self.crossing.fetch(blocks, 10, transfer, reuse)
        return transfer

    def want(self, name: str, *blocks: int) -> None:
        """Fetch blocks, as an event."""
        self.fetch(name, *blocks)


def test_what_is_there_does_not_cross() -> None:
    """Blocks that the store has need no transfer; the others cross and are there afterwards."""
    bridge = Bridge()
    bridge.crossing.store.add((1, 2))
    assert bridge.fetch("none", 1, 2).awaited == 0
    assert bridge.fetch("one", 1, 2, 3).awaited == 1
    bridge.timeline.run()
    assert bridge.log == [("one", 1.0)]
    assert bridge.fetch("again", 1, 2, 3).awaited == 0
    assert bridge.crossing.server.served == 10.0


def test_all_of_it_crosses_where_nothing_is_reused() -> None:
    """Without reuse blocks cross again, though the store has them and others bring them."""
    bridge = Bridge()
    bridge.crossing.store.add((1, 2))
    bridge.fetch("first", 1, 2, reuse=False)
    bridge.fetch("second", 1, 2, reuse=False)
    bridge.timeline.run()
    assert bridge.crossing.server.served == 40.0


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
    transfer = bridge.fetch("gone", 1, 2)
    bridge.timeline.plan(0.5, lambda: bridge.crossing.stop(transfer))
    bridge.timeline.plan(1.0, lambda: bridge.want("anew", 1))
    bridge.timeline.run()
    assert bridge.log == [("anew", 2.0)]
    assert bridge.crossing.server.served == pytest.approx(15.0)


def test_a_load_that_others_want_goes_on() -> None:
    """Stopping one of two that wait for a load only takes that one out."""
    bridge = Bridge()
    first = bridge.fetch("first", 1, 2)
    bridge.fetch("second", 1, 2)
    bridge.timeline.plan(0.5, lambda: bridge.crossing.stop(first))
    bridge.timeline.run()
    assert bridge.log == [("second", 2.0)]


def test_stopping_without_an_own_load_or_after_its_end_does_nothing() -> None:
    """A transfer that only waits for others, or whose load is over, stops without touching the line."""
    bridge = Bridge()
    own = bridge.fetch("own", 1)
    waiting = bridge.fetch("waiting", 1, 2)
    only_waiting = bridge.fetch("only", 2)
    bridge.crossing.stop(waiting)
    bridge.timeline.run()
    bridge.crossing.stop(own)
    bridge.crossing.stop(only_waiting)
    assert bridge.log == [("own", pytest.approx(2.0)), ("only", 2.0)]
    assert bridge.crossing.server.served == pytest.approx(20.0)


def test_a_line_that_was_idle_starts_slowly() -> None:
    """The first load waits for the windows to grow, the next at once does not, and one after a pause does again."""
    bridge = Bridge()
    bridge.crossing.line = WanLine("a", "b", 1e6, rtt_s=1.0, connections=1)
    ramp_s = bridge.crossing.line.ramp_s
    assert ramp_s == 6.0
    bridge.fetch("cold", 1)
    bridge.timeline.plan(ramp_s + 1.1, lambda: bridge.want("warm", 2))
    bridge.timeline.plan(ramp_s + 20.0, lambda: bridge.want("cold again", 3))
    bridge.timeline.run()
    ends = {"cold": ramp_s + 1.0, "warm": ramp_s + 2.1, "cold again": 2 * ramp_s + 21.0}
    assert dict(bridge.log) == pytest.approx(ends)


def test_a_transfer_stopped_before_it_began_moves_nothing() -> None:
    """What is stopped during slow start never crosses."""
    bridge = Bridge()
    bridge.crossing.line = WanLine("a", "b", 1e6, rtt_s=1.0, connections=1)
    transfer = bridge.fetch("gone", 1)
    bridge.crossing.stop(transfer)
    bridge.timeline.run()
    assert (bridge.log, bridge.crossing.server.served) == ([], 0.0)
