"""Every reason code has a meaning, and nothing else has."""

import ast
from pathlib import Path

import policies
from policies.eligibility import REFUSABLE, UNSPLITTABLE
from policies.explain import REASONS

SOURCES = Path(policies.__file__).parent


def _words() -> set[str]:
    """All strings in the code of the policies, but for the meanings themselves."""
    return {
        node.value
        for path in SOURCES.glob("*.py")
        if path.name != "reasons.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def test_requests_that_are_not_split_have_a_meaning() -> None:
    """Each reason for which an answer is one engine's is told."""
    assert {reason for reason, _ in UNSPLITTABLE + REFUSABLE} <= REASONS.keys()


def test_no_meaning_outlives_its_reason() -> None:
    """A reason that no policy gives is not told of."""
    assert REASONS.keys() <= _words()
