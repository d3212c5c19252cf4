"""A short bad day: every kind of thing goes wrong, and nobody gets a wrong token, nor is anything left over."""

from pathlib import Path

import pytest

from tests.chaos.course import Course, spend_day

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

SHORT = Course(streams=60, calm_s=2.0, hostile_s=5.0, faults_s=12.0, answer_tokens=20, chunk_s=0.3)


async def test_a_short_bad_day(tmp_path: Path) -> None:
    """Answers are exact or fail visibly; the hostile tenant makes no other's fail; nothing leaks."""
    figures = await spend_day(SHORT, tmp_path)
    assert figures["parts_killed"] > 0
    assert (figures["lost_tokens"], figures["doubled_tokens"]) == (0, 0), figures["oddities"]
    assert figures["completed_exactly"] + figures["failed_visibly"] == figures["requests"]
    assert figures["failed_while_nothing_was_killed"] == 0, figures["failures"]
    left = {name: value for name, value in figures.items() if name.startswith("leaked_")}
    assert not any(left.values()), left
