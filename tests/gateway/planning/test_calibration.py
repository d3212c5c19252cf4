"""Profiles become engine models, prompts become blocks, and two reports become a table."""

from dataclasses import replace

import pytest

from gateway.planning.calibration import Profile, compare_reports, name_blocks, print_calibration
from gateway.planning.tables import make_console
from policies.simulator.report import make_report
from policies.valley import PrefillCurve
from tests.policies.simulator.fleets import replay, row

PROFILE = Profile(
    prefill=PrefillCurve((64, 2048), (0.005 + 0.064, 4 * 0.005 + 2.048)),
    decode={250: 0.0125, 2250: 0.0325},
    budget_tokens=512,
    kv_tokens=100_000,
    store_tokens=200_000,
    load_bytes_per_s=1e8,
    max_running=16,
)
"""5 ms a step, 1 ms a token; a decode takes 10 ms and 10 us for each token of its context."""


def test_an_engine_takes_what_was_measured() -> None:
    """Prompts of any length and decodes at any context take what the measured ones say, step by step."""
    engine = PROFILE.engine()
    assert engine.prefill_s(64) == pytest.approx(0.069)
    assert engine.prefill_s(1024) == pytest.approx(2 * 0.005 + 1.024)
    assert engine.decode_step_s(1, 1250) == pytest.approx(0.0225)
    assert (engine.max_running, engine.kv_tokens, engine.load_bytes_per_s) == (16, 100_000, 1e8)


def test_equal_prefixes_have_equal_blocks() -> None:
    """A block's number stands for all tokens up to its end, the last one for a part of a block."""
    one, other, late = name_blocks([[1, 2, 3, 4, 5], [1, 2, 3, 4, 6, 7], [9, 9, 3, 4]], 2)
    assert one == (0, 1, 2)
    assert other[:2] == one[:2] and other[2] not in one
    assert not set(late) & set(one + other)


def test_figures_are_put_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    """Each figure has its deviation from what was measured; quantiles that are far off are marked."""
    simulation, report = replay([row(1000, 201)])
    slower = [replace(one, first_s=(one.first_s or 0.0) * 1.5) for one in simulation.outcomes]
    table = compare_reports(make_report(slower, 0, report.wan_bytes, 3.0, simulation.rules.slo), report)
    assert table["ttft_p50_s"]["deviation"] == pytest.approx(-1 / 3)
    assert table["wan_bytes"]["deviation"] == 0.0
    print_calibration(table, make_console())
    shown = capsys.readouterr().out
    assert "-33% !" in shown
    assert "+0%" in shown
