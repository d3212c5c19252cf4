"""Facts of policies that one module only may know."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLANS = {"Direct", "Relay", "Singular", "PassThrough"}


def modules() -> Iterator[tuple[str, ast.Module]]:
    """Every module of the gateway and of policies."""
    for package in ("gateway", "policies"):
        for path in sorted((ROOT / package).rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), ast.parse(path.read_text())


def imports(tree: ast.Module) -> set[str]:
    """Names that a module takes from the module of plans."""
    found = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module == "policies.plans"]
    return {alias.name for node in found for alias in node.names}


def test_only_route_knows_the_classes_of_plans() -> None:
    """Whoever carries a plan out asks what it does, and so a new plan is known where it is defined and chosen."""
    assert [name for name, tree in modules() if imports(tree) & PLANS] == ["policies/route.py"]


def test_only_where_reads_the_rules_of_places() -> None:
    """Nobody else reads ``rules.regions``, so what is allowed cannot differ between choosing and replacing."""
    reading = [
        name
        for name, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr == "regions" and ast.unparse(node.value).endswith("rules")
    ]
    assert set(reading) == {"policies/where.py"}
