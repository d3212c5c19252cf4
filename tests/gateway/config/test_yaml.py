"""YAML files of operators: what no file should hold is refused, soon and by name."""

from pathlib import Path

import pytest

from gateway.config.fleet_settings import BadSettings
from gateway.config.settings import read_yaml


def bomb(levels: int) -> str:
    """Lists of ten aliases each, one in the other."""
    lines = ["a0: &a0 [x]"]
    lines += [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]" for level in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.parametrize("text", [bomb(12), "a: &a [*a]", "a: &a {b: *a}"])
def test_aliases_that_grow_without_end_are_refused(tmp_path: Path, text: str) -> None:
    """A few lines that come to billions of values, or to one that holds itself, are refused unread."""
    path = tmp_path / "rules.yaml"
    path.write_text(text)
    with pytest.raises(BadSettings, match="its aliases resolved, or itself"):
        read_yaml(path)


def test_aliases_that_save_words_are_good(tmp_path: Path) -> None:
    """What stands twice may be said once."""
    path = tmp_path / "rules.yaml"
    path.write_text("a: &a {b: 1}\nc: *a\nd: {<<: *a, e: 2}\n")
    assert read_yaml(path) == {"a": {"b": 1}, "c": {"b": 1}, "d": {"b": 1, "e": 2}}


@pytest.mark.parametrize("text", ["[" * 5000, "a: [", "\0", "a: !!python/object:os.system x", "a: *nobody"])
def test_what_is_no_yaml_is_named(tmp_path: Path, text: str) -> None:
    """Depth, odd bytes, tags that make objects and unknown aliases are errors that name the file."""
    path = tmp_path / "rules.yaml"
    path.write_text(text)
    with pytest.raises(BadSettings, match=r"rules\.yaml is not valid YAML"):
        read_yaml(path)
