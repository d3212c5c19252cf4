"""Traces: recorded rows and made-up agent traffic."""

import random
from itertools import pairwise

import pytest

from policies.simulator.trace import AgentTraffic, Row, read_mooncake


def test_mooncake_rows() -> None:
    """Milliseconds become seconds, and an empty answer counts as one token."""
    rows = read_mooncake([{"timestamp": 1500, "input_length": 700, "output_length": 0, "hash_ids": [0, 7]}])
    assert list(rows) == [Row(1.5, 700, 1, (0, 7))]


@pytest.mark.parametrize("row", [{}, {"timestamp": "x", "input_length": 1, "output_length": 1, "hash_ids": []}])
def test_other_rows_are_refused(row: dict[str, object]) -> None:
    """Rows of another kind raise instead of becoming wrong requests."""
    with pytest.raises((KeyError, ValueError)):
        list(read_mooncake([row]))


def test_agent_traffic_grows_by_turns() -> None:
    """Rows come in order of time; blocks cover the prompt; most prompt tokens were seen in an earlier turn."""
    rows = AgentTraffic(sessions_per_s=0.5, duration_s=100).rows(random.Random(1))
    assert all(a.at_s <= b.at_s for a, b in pairwise(rows))
    assert all(len(row.blocks) == -(-row.prompt_tokens // 256) for row in rows)
    seen: set[int] = set()
    known = 0
    for row in rows:
        known += sum(block in seen for block in row.blocks)
        seen |= set(row.blocks)
    assert 0.6 < known / sum(len(row.blocks) for row in rows) < 1.0


def test_agent_traffic_repeats_with_its_seed() -> None:
    """The same seed makes the same rows."""
    traffic = AgentTraffic(sessions_per_s=0.2, duration_s=50)
    assert traffic.rows(random.Random(3)) == traffic.rows(random.Random(3))
