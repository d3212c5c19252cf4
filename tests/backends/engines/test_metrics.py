"""Reading single values out of Prometheus text."""

from backends.engines.dialect import find_label, read_by_label, read_samples

TEXT = """
# HELP vllm:running of vllm:running 3
# TYPE vllm:running gauge
vllm:running{model="a b",note="brace } and \\" quote"} 2.0
vllm:running{model="c"} 3e0 1700000000
vllm:running_total 9
vllm:running NaN
vllm:running{model="d"} many
vllm:running
vllm:info{block_size="16",other_block_size="4"} 1
plain 5
"""


def test_samples_of_one_name() -> None:
    """All series of exactly that name, whatever their labels; what is not a finite number is left out."""
    assert read_samples(TEXT, "vllm:running") == [2.0, 3.0]
    assert read_samples(TEXT, "plain") == [5.0]
    assert read_samples(TEXT, "absent") == []


def test_samples_by_label() -> None:
    """Values are told apart by a label; series without it, and values that are none, are left out."""
    assert read_by_label(TEXT, "vllm:running", "model") == {"a b": 2.0, "c": 3.0}
    assert read_by_label(TEXT * 2, "vllm:running", "model") == {"a b": 4.0, "c": 6.0}
    assert read_by_label(TEXT, "plain", "model") == {}


def test_label() -> None:
    """A label is found by its whole name, escapes included."""
    assert find_label(TEXT, "vllm:info", "block_size") == "16"
    assert find_label(TEXT, "vllm:info", "size") is None
    assert find_label(TEXT, "vllm:running", "note") == 'brace } and \\" quote'
    assert find_label(TEXT, "plain", "x") is None
    assert find_label(TEXT, "absent", "x") is None
