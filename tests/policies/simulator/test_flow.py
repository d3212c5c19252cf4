"""Simulated requests: the times and tokens of each pipeline, reckoned by hand."""

from dataclasses import replace

import pytest

from policies.rules import parse_rules
from policies.simulator.fleet import Member
from policies.simulator.replay import Replay
from policies.types import Hit, Role
from policies.wan import estimate_transfer, wait_after_prefill_s
from tests.policies.build import FixedRng
from tests.policies.simulator.fleets import ENGINE, SLOW, TRIO, fleet, replay, row

NEAR_MAIN = Member("m", Role.MD, "a", ENGINE)


def test_direct_waits_for_kv_after_the_first_token() -> None:
    """P's token comes at the end of prefill; MD goes on when KV, two round trips and the extend are over."""
    simulation, report = replay([row(1000, 11)], pipelines=["direct"])
    (outcome,) = simulation.outcomes
    assert outcome.ttft_s == pytest.approx(0.101)
    assert outcome.gap_s == pytest.approx(1.0 + 2 * 0.02 + 0.01, abs=0.0001)
    assert outcome.end_s == pytest.approx(0.101 + 1.05 + 0.1, abs=0.0001)
    assert (outcome.prefill_tokens, outcome.relay_tokens, outcome.main_tokens) == (1, 0, 10)
    assert report.wan_bytes == 1_000_000


@pytest.mark.parametrize("cached", [0, 2_000, 5_000, 8_000, 9_900])
@pytest.mark.parametrize("rate", [5e6, 2e7, 5e8])
def test_the_wait_for_kv_is_what_was_reckoned(cached: int, rate: float) -> None:
    """On an idle line MD has the KV as long after P's end as reckoned, within a step: what P had crosses before."""
    line = replace(SLOW, rate_bytes_per_s=rate, connections=1000)
    simulation = Replay(fleet(lines=(line,)), parse_rules({"pipelines": ["direct"]}), FixedRng())
    asked, prefill = row(10_000, 11), simulation.world.sites["p"]
    prefill.cache.add(asked.blocks[: cached // 100])
    seen = simulation.world.snapshot()
    estimate = estimate_transfer(10_000, Hit(0), seen.links["a", "b"], seen)
    reckoned_s = wait_after_prefill_s(estimate, 10_000, prefill.view(), Hit(cached))
    simulation.run([asked])
    call_s = 0.02 + 0.01  # the round trip to MD, and the extend
    assert simulation.outcomes[0].gap_s == pytest.approx((reckoned_s or 0.0) + call_s, abs=0.01)


def test_classic_shows_nothing_before_main() -> None:
    """The naive way has its first token after KV, extend and one step."""
    simulation, _ = replay([row(1000, 11)], pipelines=["direct"], direct_classic=True)
    (outcome,) = simulation.outcomes
    assert outcome.ttft_s == pytest.approx(0.101 + 1.0 + 2 * 0.02 + 0.01 + 0.01, abs=0.0001)
    assert (outcome.prefill_tokens, outcome.main_tokens, outcome.gap_s) == (0, 11, 0.0)


def test_relay_hides_the_transfer_by_catch_up() -> None:
    """RLD writes while the KV crosses; the joint lasts a round trip and one small extend."""
    simulation, report = replay([row(1000, 201)])
    (outcome,) = simulation.outcomes
    assert (outcome.kind, outcome.reason) == ("relay", "wan_slow")
    assert outcome.ttft_s == pytest.approx(0.101)
    assert outcome.gap_s == pytest.approx(0.02 + 0.01)
    assert outcome.relay_tokens == pytest.approx(103, abs=2)
    assert outcome.prefill_tokens + outcome.relay_tokens + outcome.main_tokens == 201
    assert report.token_share["RLD"] == pytest.approx(outcome.relay_tokens / 201)


def test_one_shot_hands_all_over_in_the_warm_leg() -> None:
    """RLD writes on while MD extends by all that is pending; the joint then lasts what is left."""
    simulation, _ = replay([row(1000, 201)], handoff={"mode": "one_shot"})
    (outcome,) = simulation.outcomes
    assert outcome.gap_s == pytest.approx(0.02 + 0.01)
    assert outcome.relay_tokens == pytest.approx(104, abs=2)


def test_a_fused_p_writes_in_rlds_place() -> None:
    """P's tokens are its own until MD takes over, and no RLD is used."""
    simulation, report = replay([row(1000, 201)], relay={"fused": "always"})
    (outcome,) = simulation.outcomes
    assert (outcome.kind, outcome.reason, outcome.relay_tokens) == ("relay", "fused", 0)
    assert outcome.prefill_tokens > 50 and outcome.prefill_tokens + outcome.main_tokens == 201
    assert report.token_share["P"] == pytest.approx(outcome.prefill_tokens / 201)


def test_a_short_answer_ends_at_relay_and_main_still_gets_the_kv() -> None:
    """A relayed answer that ends first lets the transfer complete; the next turn finds its KV at MD."""
    simulation, report = replay([row(1000, 11), row(1000, 11, at_s=5.0)])
    first, second = simulation.outcomes
    assert (first.kind, first.relay_tokens) == ("relay", 10)
    assert first.end_s == pytest.approx(0.201, abs=0.0001)
    assert (second.kind, second.reason, second.main_hit_tokens) == ("direct", "nothing_to_move", 1000)
    assert report.wan_bytes == 1_000_000


def test_an_answer_that_ends_during_catch_up_is_relays() -> None:
    """When RLD ends while an extend runs, nothing more is asked for."""
    slow_extend = replace(ENGINE, step_s=0.5)
    members = (*TRIO[:2], Member("m", Role.MD, "b", slow_extend))
    simulation, _ = replay([row(1000, 121)], fleet(*members))
    (outcome,) = simulation.outcomes
    assert (outcome.relay_tokens, outcome.main_tokens, outcome.gap_s) == (120, 0, 0.0)


LOOSE = {"min_uncached_tokens": 1000, "max_output_tokens": 100, "budget": 0.25}
"""Singular limits within this small fleet's reach."""


def test_a_singular_request_moves_nothing() -> None:
    """With learnt short answers and budget, a long cold prompt ends at RLD without any transfer."""
    rows = [row(50, 3, at_s=float(index)) for index in range(30)]
    simulation, report = replay([*rows, row(2000, 11, at_s=50.0, first_block=10)], singular=LOOSE)
    outcome = simulation.outcomes[-1]
    assert (outcome.kind, outcome.reason, outcome.relay_tokens) == ("singular", "singular", 10)
    assert report.wan_bytes == 0


def test_a_transfer_is_stopped_when_relay_was_first() -> None:
    """Without an expected length the request is relayed, and its transfer stopped when RLD ends it early."""
    rows = [row(50, 3, at_s=float(index)) for index in range(10)]
    simulation, report = replay([*rows, row(2000, 11, at_s=50.0, first_block=10)], singular=LOOSE)
    outcome = simulation.outcomes[-1]
    assert (outcome.kind, outcome.reason) == ("singular", "singular_live")
    assert report.wan_bytes == pytest.approx(100_000, rel=0.01)
    assert simulation.world.singular.used == 1.0


def test_one_region_moves_nothing() -> None:
    """With MD beside P the KV is there when P ends."""
    simulation, report = replay([row(1000, 11)], fleet(*TRIO[:2], NEAR_MAIN, lines=()))
    (outcome,) = simulation.outcomes
    assert outcome.reason == "same_region"
    assert outcome.gap_s == pytest.approx(0.01, abs=0.0001)
    assert report.wan_bytes == 0


def test_without_prefill_main_does_all() -> None:
    """With no P an MD prefills itself."""
    simulation, _ = replay([row(1000, 11)], fleet(TRIO[2]))
    (outcome,) = simulation.outcomes
    assert (outcome.kind, outcome.main_tokens) == ("passthrough", 11)
    assert outcome.ttft_s == pytest.approx(0.101 + 0.01)


@pytest.mark.parametrize("lines", [(SLOW,), ()])
def test_an_answer_of_one_token_is_prefills(lines: tuple[object, ...]) -> None:
    """P's token can be the whole answer, whatever becomes of the KV."""
    members = TRIO if lines else (*TRIO[:2], NEAR_MAIN)
    simulation, _ = replay([row(1000, 1)], fleet(*members, lines=(SLOW,) if lines else ()))
    (outcome,) = simulation.outcomes
    assert (outcome.prefill_tokens, outcome.relay_tokens, outcome.main_tokens) == (1, 0, 0)
    assert outcome.end_s == outcome.first_s


def test_without_main_requests_are_refused() -> None:
    """A fleet without MD serves nobody."""
    simulation, report = replay([row(1000, 11)], fleet(*TRIO[:2]))
    assert (simulation.outcomes, report.refused, report.requests) == ([], 1, 0)
