"""What holds for names over the whole tree: whoever searches for a type finds one."""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("gateway", "backends", "policies")


def types_of(path: Path) -> list[str]:
    """Public classes and aliases of types that a module defines."""
    names = []
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        match node:
            case ast.ClassDef(name=name):
                names.append(name)
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                names.append(name)
    return [name for name in names if name[0].isupper() and not name.isupper()]


def test_no_public_type_has_a_name_twice() -> None:
    """A type's name leads to one place; a protocol and what implements it differ by more than their module."""
    places: dict[str, list[str]] = defaultdict(list)
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for name in types_of(path):
                places[name].append(str(path.relative_to(ROOT)))
    assert len(places) > 300
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}
