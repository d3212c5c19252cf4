"""The table of what has crossed a link says only what tests show and what the code says."""

import ast
import re
from pathlib import Path

import pytest

from tests.compatibility import ROWS, Row
from tests.readme import ROOT


def _of(verdict: str) -> list[Row]:
    return [row for row in ROWS if row.verdict == verdict]


@pytest.mark.parametrize("row", _of("works"), ids=lambda row: row.by.rpartition("/")[2])
def test_what_works_is_tested(row: Row) -> None:
    """The test that is named exists."""
    path, _, name = row.by.partition("::")
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    assert name.partition("[")[0] in {node.name for node in tree.body if isinstance(node, ast.AsyncFunctionDef)}


@pytest.mark.parametrize("row", _of("refused"), ids=lambda row: row.by)
def test_what_is_refused_is_refused_in_these_words(row: Row) -> None:
    """The refusal is one that the code can utter."""
    assert any(row.by in _joined(path) for folder in ("gateway", "backends") for path in (ROOT / folder).rglob("*.py"))


def _joined(path: Path) -> str:
    """A file's text with strings that go on in the next line put together."""
    return re.sub(r'"\s*\n\s*f?"', "", path.read_text(encoding="utf-8"))
