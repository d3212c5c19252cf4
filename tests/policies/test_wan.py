"""WAN estimates: full chunks, queue, round trip, unknown hits, learnt rates."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.types import Estimate, Hit, Role
from policies.valley import PrefillCurve
from policies.wan import crossing_s, estimate_transfer, missing_tokens, soonest_s, wait_after_prefill_s
from tests.policies.build import KV_BYTES, instance, link, snapshot


@pytest.mark.parametrize(
    ("prompt", "reach", "missing", "tail"),
    [
        (255, 0, 0, 255),
        (256, 0, 256, 0),
        (257, 0, 256, 1),
        (2049, 0, 2048, 1),
        (2049, 300, 1792, 1),
        (2049, 2049, 0, 0),
    ],
)
def test_only_full_chunks_cross(prompt: int, reach: int, missing: int, tail: int) -> None:
    """SPL-44: the store holds full chunks: hits count down to a chunk, and MD recomputes the tail it does not have."""
    estimate = estimate_transfer(prompt, Hit(reach), link(), snapshot())
    assert (estimate.missing_tokens, estimate.tail_tokens) == (missing, tail)
    assert estimate.wan_bytes == missing * KV_BYTES


def test_estimate_adds_queue_transfer_and_round_trip() -> None:
    """Time is what is queued and what is missing over the rate, plus the round trip."""
    estimate = estimate_transfer(2560, Hit(512, store_tokens=1280), link(queued_bytes=10**8), snapshot())
    assert estimate == Estimate(
        missing_tokens=1280,
        tail_tokens=0,
        wan_bytes=1280 * KV_BYTES,
        queue_s=1.0,
        transfer_s=0.64,
        rtt_s=0.03,
        total_s=1.64 + 0.03,
        worst_s=2.28 + 0.03,
    )


def test_unknown_hit_has_no_estimate() -> None:
    """An unknown hit gives neither bytes nor a time, only the worst case."""
    estimate = estimate_transfer(2560, None, link(), snapshot())
    assert (estimate.missing_tokens, estimate.wan_bytes, estimate.queue_s, estimate.total_s) == (None,) * 4
    assert estimate.transfer_s is None
    assert estimate.worst_s == pytest.approx(1.31)


def test_nothing_to_move_waits_for_nobody() -> None:
    """Without bytes the queue does not matter."""
    assert crossing_s(0, link(queued_bytes=10**9)) == 0.0


def test_the_soonest_link_counts() -> None:
    """Of several links the soonest counts, in whatever order; the same region takes no time."""
    slow, fast = link(rate_bytes_per_s=1e6), link(rate_bytes_per_s=1e7)
    assert soonest_s(10**7, (slow, fast)) == soonest_s(10**7, (fast, slow)) == pytest.approx(1.03)
    assert soonest_s(10**7, (slow, None)) == 0.0


def test_a_small_transfer_passes_large_ones() -> None:
    """Each open transfer delays a new one by at most as many bytes as the new one has."""
    busy = link(queued_bytes=10**9, open_transfers=3)
    assert crossing_s(10**6, busy) == pytest.approx(0.04 + 0.03)
    assert crossing_s(10**9, busy) == pytest.approx(20.0 + 0.03)
    assert crossing_s(10**6, link(queued_bytes=10**9)) == pytest.approx(10.01 + 0.03)
    assert crossing_s(10**6, link(queued_bytes=10**9, open_transfers=0)) == pytest.approx(0.01 + 0.03)


def test_without_progress_all_that_is_queued_counts() -> None:
    """Where engines fetch KV themselves nobody lets small transfers pass, so a new one waits for everything."""
    blind = link(queued_bytes=10**9, open_transfers=3, reports_progress=False)
    assert crossing_s(10**6, blind) == pytest.approx(10.01 + 0.03)
    estimate = estimate_transfer(256, Hit(0), blind, snapshot())
    assert estimate.queue_s == pytest.approx(10.0)


@given(prompt=st.integers(1, 10**6), reach=st.integers(0, 2 * 10**6), chunk=st.integers(1, 1024))
def test_missing_is_whole_chunks_and_within_the_prompt(prompt: int, reach: int, chunk: int) -> None:
    """What crosses is a number of chunks, not more than the prompt, and less with a longer hit."""
    missing = missing_tokens(prompt, reach, chunk)
    assert missing % chunk == 0
    assert 0 <= missing <= missing_tokens(prompt, 0, chunk) <= prompt


CURVED = instance("p1", Role.P, curve=PrefillCurve((1000, 10_000), (0.1, 1.0)))
"""A P of 0.1 ms a token."""


def test_the_wait_for_kv_is_what_is_left_after_prefill() -> None:
    """While P computes 5,000 tokens (half a second) what P had cached crosses, after what is queued."""
    busy = link(queued_bytes=20_000_000)
    estimate = estimate_transfer(10_240, Hit(0), busy, snapshot())
    assert estimate.total_s is not None
    assert estimate.queue_s == pytest.approx(0.2)
    half = wait_after_prefill_s(estimate, 10_240, CURVED, Hit(5_240))
    assert half == pytest.approx(estimate.total_s - 0.3)
    cold = wait_after_prefill_s(estimate, 10_240, CURVED, Hit(0))
    assert cold == estimate.total_s


def test_without_a_curve_or_a_hit_nothing_is_taken_off() -> None:
    """What is not known shortens no wait, and an unknown wait stays unknown."""
    estimate = estimate_transfer(10_240, Hit(0), link(), snapshot())
    assert wait_after_prefill_s(estimate, 10_240, instance("p1", Role.P), Hit(0)) == estimate.total_s
    assert wait_after_prefill_s(estimate, 10_240, CURVED, None) == estimate.total_s
    unknown = estimate_transfer(10_240, None, link(), snapshot())
    assert wait_after_prefill_s(unknown, 10_240, CURVED, Hit(0)) is None


@given(
    prompt=st.integers(1, 200_000),
    main=st.integers(0, 200_000),
    own=st.integers(0, 200_000),
    queued=st.integers(0, 10**10),
)
def test_the_wait_lies_between_nothing_and_the_whole(prompt: int, main: int, own: int, queued: int) -> None:
    """It is never longer than the whole crossing, nor shorter by more than P's own time."""
    estimate = estimate_transfer(prompt, Hit(min(main, prompt)), link(queued_bytes=queued), snapshot())
    hit = Hit(min(own, prompt))
    wait = wait_after_prefill_s(estimate, prompt, CURVED, hit)
    assert wait is not None
    assert estimate.total_s is not None
    prefill_s = CURVED.curve.at(max(1, prompt - hit.tokens)) if CURVED.curve else 0.0
    assert max(0.0, estimate.total_s - prefill_s) - 1e-9 <= wait <= estimate.total_s
