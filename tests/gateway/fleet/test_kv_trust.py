"""When KV that crosses a link is believed to be of use, and when the link is given up for a model."""

import logging

import pytest

from gateway.fleet.kv_trust import FIRST_WAIT_S, LONGEST_WAIT_S, STRIKES, WARNING_INTERVAL_S, KvTrust
from gateway.telemetry.metrics import Metrics
from policies.types import LinkView
from tests.gateway.fleet.seams import MODEL, Clock

ROUTE, OTHER = ("a", "b"), ("c", "b")
LINKS = {route: LinkView(*route, 1e6) for route in (ROUTE, OTHER)}


class Judged:
    """The trust of one gateway, and what happens to it."""

    def __init__(self) -> None:
        self.clock, self.metrics = Clock(), Metrics()
        self.trust = KvTrust(self.clock, self.metrics)

    def strike(self, times: int = 1, *, at_once: bool = False) -> None:
        """Let md1 compute again what had crossed."""
        for _ in range(times):
            self.trust.note_unread(ROUTE, MODEL, "md1", 192, 16, at_once=at_once)

    def lose(self) -> None:
        """Give the link up."""
        self.strike(STRIKES)
        assert not self.trust.believes(ROUTE, MODEL)

    def sample(self, name: str, **labels: str) -> float | None:
        """A metric as it is shown."""
        self.trust.show_metrics(LINKS, [MODEL])
        return self.metrics.registry.get_sample_value(name, {"model": MODEL} | labels)


def test_three_in_a_row_give_a_link_up_for_their_model() -> None:
    """The third unread answer takes the link as down for its model alone; other links and models are as before."""
    judged = Judged()
    judged.strike(STRIKES - 1)
    assert judged.trust.mark(LINKS, MODEL) is LINKS
    assert judged.sample("pdd_link_trusted", link="a->b") == 1
    judged.strike()
    marked = judged.trust.mark(LINKS, MODEL)
    assert (marked[ROUTE].up, marked[ROUTE].trusted) == (False, False)
    assert marked[OTHER] is LINKS[OTHER]
    assert judged.trust.mark(LINKS, "another") is LINKS
    assert judged.sample("pdd_link_trusted", link="a->b") == 0
    assert judged.sample("pdd_link_trusted", link="c->b") == 1
    assert judged.sample("pdd_kv_unread_tokens_total", link="a->b") == 3 * (192 - 16)
    (line,) = judged.trust.list_lost(LINKS)
    assert line.startswith("m: KV over a->b is not used: md1 took 16 prompt tokens")
    assert judged.trust.list_lost([OTHER]) == []


def test_one_that_is_read_breaks_the_row() -> None:
    """Only unread answers without one in between that was read count."""
    judged = Judged()
    for _ in range(3):
        judged.strike(STRIKES - 1)
        judged.trust.note_read(ROUTE, MODEL)
    assert judged.trust.believes(ROUTE, MODEL)


def test_what_a_canary_says_holds_at_once() -> None:
    """A verdict that was made on purpose needs no repetition."""
    judged = Judged()
    judged.strike(at_once=True)
    assert not judged.trust.believes(ROUTE, MODEL)


def test_transfers_without_a_chunk_count_alike() -> None:
    """KV that never shows up in P's store is counted by itself and gives the link up in the same way."""
    judged = Judged()
    for _ in range(STRIKES):
        judged.trust.note_unseen(ROUTE, MODEL, "no chunk was seen")
    assert not judged.trust.believes(ROUTE, MODEL)
    assert judged.sample("pdd_kv_unseen_total", link="a->b") == STRIKES


def test_one_request_tries_again_and_decides() -> None:
    """After the wait one request uses the link, others do not meanwhile; once it is read the link is back."""
    judged = Judged()
    judged.lose()
    judged.clock.now_s += FIRST_WAIT_S
    assert judged.trust.believes(ROUTE, MODEL)
    judged.trust.use(ROUTE, MODEL)
    assert not judged.trust.believes(ROUTE, MODEL)
    judged.trust.note_read(ROUTE, MODEL)
    assert judged.trust.believes(ROUTE, MODEL)
    assert judged.trust.list_lost(LINKS) == []
    judged.strike(STRIKES - 1)
    assert judged.trust.believes(ROUTE, MODEL)


def test_waits_double_up_to_a_bound() -> None:
    """Each trial that is in vain doubles the wait; what began before the link was lost changes nothing."""
    judged = Judged()
    judged.lose()
    wait_s = FIRST_WAIT_S
    for _ in range(8):
        judged.strike()
        judged.clock.now_s += wait_s - 1
        assert not judged.trust.believes(ROUTE, MODEL)
        judged.clock.now_s += 1
        assert judged.trust.believes(ROUTE, MODEL)
        judged.trust.use(ROUTE, MODEL)
        judged.strike()
        wait_s = min(2 * wait_s, LONGEST_WAIT_S)
    assert wait_s == LONGEST_WAIT_S


def test_a_trial_that_tells_nothing_is_followed_by_another() -> None:
    """A request that tries the link and leaves, or whose engine does not count, does not block the next trial."""
    judged = Judged()
    judged.lose()
    judged.clock.now_s += FIRST_WAIT_S
    judged.trust.use(ROUTE, MODEL)
    judged.clock.now_s += FIRST_WAIT_S
    assert judged.trust.believes(ROUTE, MODEL)


def test_a_new_engine_process_is_tried_at_once() -> None:
    """An engine that was started again may have been mended; one elsewhere says nothing about the link."""
    judged = Judged()
    judged.lose()
    judged.trust.note_restart("c", MODEL)
    assert not judged.trust.believes(ROUTE, MODEL)
    judged.trust.note_restart("b", MODEL)
    assert judged.trust.believes(ROUTE, MODEL)


def test_the_warning_says_what_to_check_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """One line a minute names link, model, instance, both numbers and what both sides must share."""
    judged = Judged()

    def warnings() -> list[str]:
        return [record.message for record in caplog.records if "is of no use" in record.message]

    with caplog.at_level(logging.WARNING):
        judged.strike()
        judged.trust.note_read(ROUTE, MODEL)
        judged.strike()
        (line,) = warnings()
        for word in ("a->b", MODEL, "md1", "16", "192", "chunk size", "dialect", "dtype", "model name", "salt"):
            assert word in line
        judged.clock.now_s += WARNING_INTERVAL_S
        judged.strike()
        assert len(warnings()) == 2


def test_a_route_that_crosses_nothing_is_no_trial() -> None:
    """A plan without a link leaves everything as it is."""
    judged = Judged()
    judged.lose()
    judged.clock.now_s += FIRST_WAIT_S
    judged.trust.use(None, MODEL)
    judged.trust.use(OTHER, MODEL)
    assert judged.trust.believes(ROUTE, MODEL)


def test_salted_kv_is_judged_by_itself() -> None:
    """What becomes of prompts with a salt says nothing of those without one, and the other way round."""
    judged = Judged()
    for _ in range(STRIKES):
        judged.trust.note_unread(ROUTE, MODEL, "md1", 192, 16, is_salted=True)
        judged.trust.note_read(ROUTE, MODEL)
    assert judged.trust.believes(ROUTE, MODEL)
    assert judged.trust.mark(LINKS, MODEL) is LINKS
    assert not judged.trust.mark(LINKS, MODEL, is_salted=True)[ROUTE].up
    (line,) = judged.trust.list_lost(LINKS)
    assert line.startswith("m (with a salt): KV over a->b is not used")
    assert judged.sample("pdd_link_trusted", link="a->b") == 0


def test_a_contradiction_stops_all_and_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """Keys that are not those of the link stop prompts with and without salts, with one line of each kind."""
    judged = Judged()
    judged.trust.note_contradiction(ROUTE, MODEL, "p1 stores chunks of 64 tokens, the link says 256")
    assert not judged.trust.believes(ROUTE, MODEL)
    assert not judged.trust.believes(ROUTE, MODEL, is_salted=True)
    assert judged.trust.list_lost(LINKS) == [
        "m: KV over a->b is not used: p1 stores chunks of 64 tokens, the link says 256"
    ]
    assert caplog.text.count("says 256") == 1
    judged.trust.note_contradiction(ROUTE, MODEL, "p1 stores chunks of 128 tokens, the link says 256")
    assert "128" in caplog.text


def test_another_link_is_not_blamed() -> None:
    """A link that was replaced leaves nothing behind."""
    judged = Judged()
    judged.lose()
    judged.trust.forget(OTHER)
    assert not judged.trust.believes(ROUTE, MODEL)
    judged.trust.forget(ROUTE)
    assert judged.trust.believes(ROUTE, MODEL)
    assert judged.trust.list_lost(LINKS) == []
