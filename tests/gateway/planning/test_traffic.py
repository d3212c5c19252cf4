"""Traces from files."""

import json
from pathlib import Path

import pytest

from gateway.config.fleet_settings import BadSettings
from gateway.planning.traffic import read_traffic
from policies.simulator.cases import Agents

TRACES = Path(__file__).resolve().parents[4] / "shared" / "traces"
"""Real traces, where they lie beside the checkout."""
AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,1000,44\n2023-11-16 18:15:50.9951690,2000,9\n"
)


def test_mooncake(tmp_path: Path) -> None:
    """Rows come in order of time, the first few where that is asked."""
    rows = [{"timestamp": at, "input_length": 700, "output_length": 5, "hash_ids": ["a", at]} for at in (2000, 0, 1000)]
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)) + "\n\n", encoding="utf-8")
    traffic = read_traffic(path, Agents(), 1)
    assert [row.at_s for row in traffic.rows] == [0.0, 1.0, 2.0]
    assert traffic.block_tokens == 512
    assert len({row.blocks[0] for row in traffic.rows}) == 1
    assert len(read_traffic(path, Agents(), 1, most=2).rows) == 2


def test_azure(tmp_path: Path) -> None:
    """Lengths and times are the file's, blocks are made up, the same with the same seed."""
    path = tmp_path / "trace.csv"
    path.write_text(AZURE, encoding="utf-8")
    one, other = (read_traffic(path, Agents(), 7) for _ in range(2))
    assert one == other
    assert [(row.prompt_tokens, row.output_tokens) for row in one.rows] == [(1000, 44), (2000, 9)]
    assert one.block_tokens == 256


@pytest.mark.parametrize(
    ("name", "text", "part"),
    [
        ("x.jsonl", "{}\n", "x.jsonl:1: not a request"),
        ("x.jsonl", "{", "not a trace"),
        ("x.jsonl", "", "no requests"),
        ("x.csv", "A,B\n1,2\n", "not a trace"),
        ("x.csv", "", "no requests"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, name: str, text: str, part: str) -> None:
    """A file that is something else is an error that names it."""
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BadSettings, match=part):
        read_traffic(path, Agents(), 1)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """A file that is not there says so."""
    with pytest.raises(BadSettings, match="cannot read"):
        read_traffic(tmp_path / "none.jsonl", Agents(), 1)


@pytest.mark.skipif(not TRACES.is_dir(), reason="no real traces beside the checkout")
@pytest.mark.parametrize(
    ("name", "requests"),
    [
        ("conversation_trace.jsonl", 12_031),
        ("AzureLLMInferenceTrace_conv.csv", 19_366),
        ("tracelab_round_trace.jsonl", 19),
    ],
)
def test_real_traces(name: str, requests: int) -> None:
    """The public traces are read whole."""
    path = TRACES / name
    if not path.is_file():
        pytest.skip(f"{name} is not there")
    assert len(read_traffic(path, Agents(), 1).rows) == requests
