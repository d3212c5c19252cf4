"""The closed form: the reported figures come out of it, and what PDD lives on shows."""

from dataclasses import replace

import pytest

from policies.simulator.closed_form import (
    UTILISATION,
    ClosedForm,
    Needs,
    Workload,
    closed_form,
    decode_need_s,
    fleet_rate,
    needs,
)
from tests.policies.simulator.parts import FAR, NEAR, PARTS

LOAD = Workload(prompt_tokens=60_000, uncached_tokens=6_000, missing_tokens=6_000, output_tokens=1_000, itl_s=0.02)


def test_the_reported_gain_follows_from_the_reported_fleet() -> None:
    """With p : dA : dB = 1 : 1.9 : 0.82, B at 1.2 A and a line at 0.35 A, the gain is the reported 37.5 %, to 10 %."""
    same, pdd = Needs(1.0, 1.9, 30), Needs(1.0, 0.82, 60)
    rate = fleet_rate(39, 32, pdd)
    line = 0.35 / rate
    found = ClosedForm(same, pdd, 1 / 2.9, 1 / (1.0 * 43 / 39 + 0.82 * 1.2 + line), 0.0, float("inf"))
    assert found.gain == pytest.approx(0.375, rel=0.1)
    assert rate / fleet_rate(30, 58, same) - 1 == pytest.approx(0.278, rel=0.1)


def test_a_chip_that_decodes_better_pays_and_the_same_chip_does_not() -> None:
    """B's faster memory is what PDD gains by; with A's own chips behind a line it loses the line and RLD."""
    found = closed_form(PARTS.pair, LOAD, rate_per_s=10.0)
    assert found.gain > 0.1
    assert found.same_bcr < found.pdd_bcr
    twins = closed_form(replace(PARTS.pair, decode=NEAR), LOAD, rate_per_s=10.0)
    assert twins.gain < 0


def test_a_line_that_is_too_thin_is_bought_more_than_once() -> None:
    """Beyond what one line carries its cost grows with the bytes."""
    thin = replace(PARTS.pair, line_bytes_per_s=1e8)
    one, two = (closed_form(pair, LOAD, rate_per_s=10.0) for pair in (PARTS.pair, thin))
    assert two.pdd_bcr < one.pdd_bcr
    assert two.line_rate_per_s == pytest.approx(1e8 / 6_000 / 30_000)
    free = closed_form(PARTS.pair, replace(LOAD, missing_tokens=0), rate_per_s=10.0)
    assert free.line_rate_per_s == float("inf")


def test_the_batch_is_bound_by_memory_and_by_the_pace() -> None:
    """A tighter promise makes the batch smaller and each answer dearer; memory bounds it anyway."""
    seconds, batch = decode_need_s(FAR, LOAD)
    tight_s, tight = decode_need_s(FAR, replace(LOAD, itl_s=0.015))
    assert tight < batch <= FAR.kv_tokens // 61_000
    assert tight_s > seconds
    assert decode_need_s(FAR, replace(LOAD, itl_s=0.0001))[1] == 1


def test_needs_add_up_to_a_fleets_rate() -> None:
    """The scarcer role sets the rate."""
    need = needs(NEAR, FAR, LOAD)
    assert fleet_rate(1e9, 3, need) == pytest.approx(3 / need.decode_s)
    assert fleet_rate(3, 1e9, need) == pytest.approx(3 / need.prefill_s)
    assert UTILISATION < 1
