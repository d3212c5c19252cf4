"""What each kind of leg carries: the table of fields per leg."""

from backends.types import Sampling
from gateway.relay.legs import GREEDY, build_align_leg, build_leg
from gateway.relay.splice_events import LegId, LegKind, StartLeg
from gateway.relay.types import GenerationRequest
from policies.rules import RelayRules

SAMPLING = Sampling(temperature=0.7, top_p=0.9, stop_token_ids=(9,))
REQUEST = GenerationRequest("r", "m", [1, 2, 3], 50, min_tokens=5, sampling=SAMPLING, cache_salt="tenant", priority=3)
RULES = RelayRules(first_token_timeout_s=100, extend_timeout_s=7, idle_timeout_s=20)
LOG = [11, 12, 13]
WAIT_S = 2.5


def _start(kind: LegKind, leg: int = 0, base: int = 2, *, kv_expected: bool = True) -> StartLeg:
    return StartLeg(LegId(leg), kind, base, 48, 3, kv_expected)


def test_prompt_is_the_prompt_and_the_sealed_log() -> None:
    """A leg continues the client's prompt plus as many ids of the log as its base says, with the splice's budgets."""
    leg = build_leg(REQUEST, _start(LegKind.FINAL), LOG, RULES, WAIT_S)
    assert list(leg.prompt) == [1, 2, 3, 11, 12]
    assert (leg.max_tokens, leg.min_tokens) == (48, 3)


def test_salt_and_priority_are_the_same_in_every_leg() -> None:
    """POL-12: whatever the leg, its KV belongs to the same tenant and it has the same priority."""
    legs = [build_leg(REQUEST, _start(kind), LOG, RULES, WAIT_S) for kind in LegKind]
    legs.append(build_align_leg(REQUEST, LOG, RULES))
    assert {(leg.cache_salt, leg.priority, leg.model) for leg in legs} == {("tenant", 3, "m")}


def test_attempts_have_names_of_their_own() -> None:
    """SPL-43: no two legs share an id, and none is the client's."""
    names = {
        build_leg(REQUEST, _start(kind, leg=number), LOG, RULES, WAIT_S).request_id
        for number, kind in enumerate(LegKind)
    }
    names.add(build_leg(REQUEST, _start(LegKind.RELAY, leg=9), LOG, RULES, WAIT_S).request_id)
    assert len(names) == 5 and REQUEST.request_id not in names


def test_only_legs_whose_tokens_count_sample() -> None:
    """Decode legs carry the client's sampling; an extend and an alignment, whose token is dropped, are greedy."""
    sampled = {kind: build_leg(REQUEST, _start(kind), LOG, RULES, WAIT_S).sampling for kind in LegKind}
    assert sampled.pop(LegKind.EXTEND) is GREEDY
    assert set(map(id, sampled.values())) == {id(SAMPLING)}
    assert build_align_leg(REQUEST, LOG, RULES).sampling is GREEDY


def test_a_leg_waits_as_long_as_was_worked_out() -> None:
    """The wait for the first token goes into the leg, and the rules say how long a silence after it may be."""
    leg = build_leg(REQUEST, _start(LegKind.FINAL), LOG, RULES, WAIT_S)
    assert (leg.first_token_timeout_s, leg.idle_timeout_s) == (WAIT_S, 20)
