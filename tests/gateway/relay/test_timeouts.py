"""What one answer knows of its main engines, and what they learn from its legs."""

import pytest

from backends.engines.vllm import VllmEngine
from backends.types import TransferRequest
from gateway.fleet.pools import Instance, InstanceSpec
from gateway.relay.legs import LEAST_MEASURED_TOKENS, LegPace
from gateway.relay.splice_events import LegId, LegKind, StartLeg
from gateway.relay.timeouts import FirstTokenTimeouts
from policies.rules import RelayRules
from policies.types import Role

RULES = RelayRules(extend_timeout_s=30, extend_floor_s=0.001)
PROMPT_TOKENS, TAIL_TOKENS = 1000, 1000 % 256


def _instance(id_: str = "md1") -> Instance:
    url = "http://127.0.0.1:1"
    return Instance(InstanceSpec(id_, Role.MD, "m", "b", url, max_running=8), VllmEngine(id_, url))


def _start(kind: LegKind, base: int, *, kv_expected: bool = True) -> StartLeg:
    return StartLeg(LegId(0), kind, base, 48, 0, kv_expected)


@pytest.fixture
def patience() -> FirstTokenTimeouts:
    """Of an answer to a prompt of 1,000 tokens, in chunks of 256, a million bytes each token."""
    transfer = TransferRequest("t", "", "m", [7] * PROMPT_TOKENS, 256, kv_bytes_per_token=1_000_000)
    return FirstTokenTimeouts(transfer, 0.0, RULES)


def test_a_main_lacks_what_it_has_not_answered_for(patience: FirstTokenTimeouts) -> None:
    """A new MD has the chunks that crossed; one that answered a leg has that leg's prompt, too."""
    md1, md2 = _instance("md1"), _instance("md2")
    assert patience.lacking_tokens(_start(LegKind.EXTEND, 40), md1) == TAIL_TOKENS + 40
    assert patience.lacking_tokens(_start(LegKind.FINAL, 40, kv_expected=False), md1) == PROMPT_TOKENS + 40
    patience.note_answer(_start(LegKind.EXTEND, 40), md1)
    assert patience.lacking_tokens(_start(LegKind.FINAL, 55), md1) == 15
    assert patience.lacking_tokens(_start(LegKind.FINAL, 55), md2) == TAIL_TOKENS + 55


def test_an_extend_over_kv_that_is_there_must_be_quick(patience: FirstTokenTimeouts) -> None:
    """MD with its KV gets the wait that is worked out for it; without it, and for P and RLD, it is the long one."""
    waits = {
        (kind, near): patience.wait_s(_start(kind, 2, kv_expected=near), _instance(), 0.0)
        for kind in LegKind
        for near in (True, False)
    }
    short = {key for key, wait_s in waits.items() if wait_s == RULES.extend_timeout_s}
    assert short == {(LegKind.EXTEND, True), (LegKind.FINAL, True)}
    assert set(waits.values()) == {RULES.extend_timeout_s, RULES.first_token_timeout_s}


def test_the_wait_follows_what_is_known(patience: FirstTokenTimeouts) -> None:
    """KV counts until MD has it; an MD that was silent gets twice as long, and no other does."""
    md1, md2 = _instance("md1"), _instance("md2")
    start = _start(LegKind.FINAL, 32)
    assert patience.wait_s(start, md1, 0.0) == 30
    md1.extend_tokens_per_s = md2.extend_tokens_per_s = 1000.0
    assert patience.wait_s(start, md1, 0.0) == pytest.approx(4 * ((TAIL_TOKENS + 32) / 1000 + 0.768))
    patience.note_answer(_start(LegKind.EXTEND, 12), md1)
    patience.note_silence(md1)
    assert patience.wait_s(start, md1, 0.0) == pytest.approx(2 * 4 * 0.02)
    assert patience.wait_s(start, md2, 0.0) == pytest.approx(4 * ((TAIL_TOKENS + 32) / 1000 + 0.768))


def test_more_legs_than_it_batches_are_a_queue(patience: FirstTokenTimeouts) -> None:
    """What this process has sent counts before the engine's own load says so."""
    md1 = _instance()
    md1.extend_tokens_per_s = 1000.0
    start = _start(LegKind.FINAL, 32)
    alone_s = patience.wait_s(start, md1, 0.0)
    md1.in_flight = 10
    assert patience.wait_s(start, md1, 0.0) == pytest.approx(3 * alone_s)


@pytest.mark.parametrize("is_answered", [True, False])
def test_tokens_ahead_are_those_of_legs_without_a_first_token(is_answered: bool) -> None:
    """A leg's tokens stand in the way of others until its first token comes or it ends."""
    md1 = _instance()
    pace = LegPace(md1, _start(LegKind.FINAL, 50), lacking_tokens=50)
    pace.wait(0.0)
    assert md1.extending_tokens == 50
    if is_answered:
        pace.begin(0.5)
        assert md1.extending_tokens == 0
    pace.end()
    assert md1.extending_tokens == 0


@pytest.mark.parametrize(
    ("kind", "lacking", "is_first", "known", "learnt"),
    [
        (LegKind.EXTEND, 4, False, None, 8.0),
        (LegKind.EXTEND, 4, False, 8.0, 8.0),
        (LegKind.EXTEND, 400, True, None, 800.0),
        (LegKind.EXTEND, 400, True, 5000.0, 5000.0),
        (LegKind.FINAL, LEAST_MEASURED_TOKENS, False, None, 2.0 * LEAST_MEASURED_TOKENS),
        (LegKind.FINAL, LEAST_MEASURED_TOKENS - 1, False, None, None),
        (LegKind.FINAL, LEAST_MEASURED_TOKENS, True, None, 2.0 * LEAST_MEASURED_TOKENS),
        (LegKind.FINAL, LEAST_MEASURED_TOKENS, True, 5000.0, 5000.0),
        (LegKind.RELAY, 200, True, None, None),
    ],
)
def test_hand_offs_teach_the_speed_of_extends(
    kind: LegKind, lacking: int, is_first: bool, known: float | None, learnt: float | None
) -> None:
    """Extends do, and finals of some size; a first one loads KV, too, so it only teaches who knows nothing."""
    md1 = _instance()
    md1.extend_tokens_per_s = known
    pace = LegPace(md1, _start(kind, 400), lacking_tokens=lacking, is_first_extend=is_first)
    pace.wait(10.0)
    pace.begin(10.5)
    pace.end()
    assert md1.extend_tokens_per_s == learnt


def test_a_direct_answers_final_teaches_nothing() -> None:
    """MD that goes on from P's token has loaded KV and computed next to nothing."""
    md1 = _instance()
    pace = LegPace(md1, _start(LegKind.FINAL, 1), lacking_tokens=400, is_first_extend=True)
    pace.wait(10.0)
    pace.begin(10.5)
    pace.end()
    assert md1.extend_tokens_per_s is None
