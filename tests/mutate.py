"""``make mutate``: changes one thing in a module and sees whether its tests notice; prints those that they did not.

A sample (MUTANTS, 40), by a seed (MUTATE_SEED): it takes minutes, so it is no part of ``make test``. What survives is a
gap in the tests, or a change that makes no difference.
"""

import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
TARGETS = {
    "policies": "tests/policies",
    "gateway/relay": "tests/gateway/relay",
    "gateway/index": "tests/gateway/index",
    "gateway/limits": "tests/gateway/limits",
    "gateway/auth": "tests/gateway/auth",
    "gateway/text": "tests/gateway/text",
    "backends/kv/bridge": "tests/backends/kv/bridge",
}
"""Folders, and what tests them."""
TEST_S = 300
NO_TESTS = 5
"""What pytest says where there are none."""
COPIED = ("policies", "gateway", "backends", "tests", "pyproject.toml", "README.md", "constraints.txt")
COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
COUNTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
}  # fmt: skip


def places(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield what can be changed, in one order; what decorators say (``slots=True``) makes no difference."""
    decorators = [part for node in ast.walk(tree) for part in getattr(node, "decorator_list", ())]
    passed_over = {id(inner) for part in decorators for inner in ast.walk(part)}
    for node in ast.walk(tree):
        if id(node) in passed_over:
            continue
        if isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARED:
            yield node
        elif isinstance(node, ast.BinOp) and type(node.op) in COUNTED:
            yield node
        elif isinstance(node, ast.BoolOp | ast.IfExp) or (
            isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
        ):
            yield node
        elif isinstance(node, ast.Constant) and type(node.value) in (int, bool, float):
            yield node


def change(node: ast.AST) -> None:
    """Change one thing."""
    match node:
        case ast.Compare():
            node.ops[0] = COMPARED[type(node.ops[0])]()
        case ast.BinOp():
            node.op = COUNTED[type(node.op)]()
        case ast.BoolOp():
            node.op = ast.And() if isinstance(node.op, ast.Or) else ast.Or()
        case ast.IfExp():
            node.body, node.orelse = node.orelse, node.body
        case ast.UnaryOp():
            node.operand = ast.UnaryOp(ast.Not(), node.operand)
        case ast.Constant(value=bool() as value):
            node.value = not value
        case ast.Constant(value=int() | float() as number):
            node.value = number + 1


def mutants() -> list[tuple[Path, int]]:
    """All of them: a file, and the number of a place in it."""
    found = []
    for folder in TARGETS:
        for path in sorted((ROOT / folder).glob("*.py")):
            count = sum(1 for _ in places(ast.parse(path.read_text())))
            found += [(path.relative_to(ROOT), number) for number in range(count)]
    return found


def survives(copy: Path, path: Path, number: int) -> str | None:
    """Return the changed line where the tests notice nothing."""
    source = (ROOT / path).read_text()
    tree = ast.parse(source)
    node = list(places(tree))[number]
    before = source.splitlines()[node.lineno - 1].strip()  # type: ignore[attr-defined]
    change(node)
    (copy / path).write_text(ast.unparse(ast.fix_missing_locations(tree)))
    try:
        # What speaks to Redis or to stores is tested over real ones, which takes longer.
        noticed = any(fails(copy, TARGETS[str(path.parent)], marker) for marker in ("not slow", "slow"))
    finally:
        (copy / path).write_text(source)
    return None if noticed else f"{path}:{node.lineno}: {type(node).__name__} in: {before}"  # type: ignore[attr-defined]


def fails(copy: Path, folder: str, marker: str) -> bool:
    """Say whether a folder's tests notice."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", marker, folder]
    try:
        status = subprocess.run(command, cwd=copy, capture_output=True, timeout=TEST_S, check=False).returncode
    except subprocess.TimeoutExpired:
        return True
    return status not in (0, NO_TESTS)


def main() -> None:
    """Try a sample."""
    count = int(os.environ.get("MUTANTS", "40"))
    chosen = random.Random(os.environ.get("MUTATE_SEED", "1")).sample(mutants(), count)
    with tempfile.TemporaryDirectory() as name:
        copy = Path(name)
        for part in COPIED:
            source = ROOT / part
            if source.is_dir():
                shutil.copytree(source, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, copy / part)
        alive = 0
        for path, number in chosen:
            if (line := survives(copy, path, number)) is not None:
                alive += 1
                sys.stdout.write(f"survived {line}\n")
                sys.stdout.flush()
    sys.stdout.write(f"{count - alive} of {count} were noticed, {1 - alive / count:.1%}\n")


if __name__ == "__main__":
    main()
