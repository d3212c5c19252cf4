"""Traces: recorded rows, and what is done to their times."""

import pytest

from policies.simulator.trace import BareRequest, Row, mean_rate, pace, read_azure, read_mooncake, read_tracelab


def test_mooncake_rows() -> None:
    """Milliseconds become seconds, and an empty answer counts as one token; equal ids stay equal."""
    first = {"timestamp": 1500, "input_length": 700, "output_length": 0, "hash_ids": [0, 7]}
    second = {"timestamp": 2500, "input_length": 900, "output_length": 3, "hash_ids": [0, 9], "session": 4}
    assert list(read_mooncake([first, second])) == [Row(1.5, 700, 1, (0, 1)), Row(2.5, 900, 3, (0, 2), "4")]


@pytest.mark.parametrize("row", [{}, {"timestamp": "x", "input_length": 1, "output_length": 1, "hash_ids": []}])
def test_other_rows_are_refused(row: dict[str, object]) -> None:
    """Rows of another kind raise instead of becoming wrong requests."""
    with pytest.raises((KeyError, ValueError)):
        list(read_mooncake([row]))


def test_azure_rows() -> None:
    """Times count from the first row; lengths are all that is known."""
    rows = [
        {"TIMESTAMP": "2023-11-16 18:15:46.6805900", "ContextTokens": "374", "GeneratedTokens": "44"},
        {"TIMESTAMP": "2023-11-16 18:15:50.1805900", "ContextTokens": "396", "GeneratedTokens": "109"},
    ]
    assert list(read_azure(rows)) == [BareRequest(0.0, 374, 44), BareRequest(3.5, 396, 109)]
    with pytest.raises(KeyError):
        list(read_azure([{"TIMESTAMP": "2023-11-16 18:15:46.6805900"}]))


def test_pace() -> None:
    """Rows are stretched to a rate; their order and everything else stays."""
    rows = [Row(10.0 + at, 100, 5, (at,)) for at in range(5)]
    paced = pace(rows, 0.5)
    assert [row.at_s for row in paced] == [0.0, 2.5, 5.0, 7.5, 10.0]
    assert mean_rate(paced) == 0.5
    assert pace([], 1.0) == []
    assert mean_rate(rows[:1]) == 1.0


def round_of(session: str, prompt: int, prefix: int, *events: tuple[str, str]) -> dict[str, object]:
    """A round of an agent as TraceLab has it."""
    timing = [{"event_type": kind, "timestamp": f"2026-06-01T05:{moment}Z"} for kind, moment in events]
    lengths = {"input_tokens_total": prompt, "prefix_tokens": prefix, "output_tokens": 9}
    return {"session_id": session, "model": "m", "timing_events": timing, **lengths}


def test_tracelab_rounds() -> None:
    """A round comes with the last thing it answers; its cached prefix is the session's, at first everybody's."""
    rows = list(
        read_tracelab(
            [
                round_of("a", 1000, 512, ("user_message", "40:00.000"), ("text", "40:09.000")),
                round_of("a", 1500, 800, ("tool_result", "40:10.000"), ("tool_result", "40:12.500")),
                round_of("b", 600, 512, ("text", "41:00.000")),
            ]
        )
    )
    assert [(row.at_s, row.prompt_tokens, row.output_tokens, row.session) for row in rows] == [
        (0.0, 1000, 9, "a"),
        (12.5, 1500, 9, "a"),
        (60.0, 600, 9, "b"),
    ]
    first, second, other = (row.blocks for row in rows)
    assert [len(blocks) for blocks in (first, second, other)] == [4, 6, 3]
    assert second[:3] == first[:3] and not set(second[3:]) & set(first)
    assert other[:2] == first[:2] and other[2] not in first + second
    with pytest.raises(KeyError):
        list(read_tracelab([{"session_id": "a"}]))
