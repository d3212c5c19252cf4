"""Every rule and every setting is read by the code that runs: what nothing reads has no effect."""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path

import msgspec
import pytest

from gateway.config.settings import Settings
from policies.eligibility import RequestFeatures
from policies.placement import SIGNALS
from policies.placement_rules import Weights
from policies.rule_documents import RuleDocument
from policies.section import Section
from tests.reads import Read, Reader

ROOT = Path(__file__).resolve().parents[1]
DEFINITIONS = [
    *(ROOT / "policies" / f"{name}.py" for name in ("rules", "tenant_rules", "placement_rules", "rule_documents")),
    *(ROOT / "gateway" / "config" / f"{name}.py" for name in ("settings", "fleet_settings")),
]
BY_KEY = {Read("RuleDocument", "canary")}
"""Read before documents are merged, so as a key and not as an attribute."""

Fields = Mapping[str, Mapping[str, str]]


def sections(kind: type[Section]) -> Iterator[type[Section]]:
    """All sections below the sections of a document, each once for each place."""
    yield kind
    for one in msgspec.structs.fields(kind):
        for inner in find_sections(msgspec.inspect.type_info(one.type)):
            yield from sections(inner)


def find_sections(kind: msgspec.inspect.Type) -> Iterator[type[Section]]:
    """The section that a field holds, alone, or in a list, or as one of several things."""
    match kind:
        case msgspec.inspect.Metadata(type=inner):
            yield from find_sections(inner)
        case msgspec.inspect.StructType(cls=cls) if issubclass(cls, Section):
            yield cls
        case msgspec.inspect.UnionType(types=types):
            for one in types:
                yield from find_sections(one)
        case msgspec.inspect.VarTupleType(item_type=inner):
            yield from find_sections(inner)


def find_fields() -> dict[str, dict[str, str]]:
    """Each section's own fields, and the section that each of them holds, if any."""
    found: dict[str, dict[str, str]] = {}
    for kind in (one for document in (Settings, RuleDocument) for one in sections(document)):
        for base in kind.__mro__:
            if issubclass(base, Section) and base not in (Section, Weights):
                own = {name: one for one in msgspec.structs.fields(base) if (name := one.name) in base.__annotations__}
                held = {name: [*find_sections(msgspec.inspect.type_info(one.type))] for name, one in own.items()}
                found[base.__name__] = {name: inner[0].__name__ if inner else "" for name, inner in held.items()}
    return found


def read_code() -> Iterator[tuple[Path, ast.Module]]:
    """All modules that run in the gateway."""
    for package in ("gateway", "policies", "backends"):
        for path in sorted((ROOT / package).rglob("*.py")):
            if "simulator" not in path.parts:
                yield path, ast.parse(path.read_text(encoding="utf-8"))


def leave_out_checks(tree: ast.Module, used: set[str]) -> ast.Module:
    """Return a module of definitions without functions that only it uses: to check a value is not to follow it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef):
            node.body = [part for part in node.body if not isinstance(part, ast.FunctionDef) or part.name in used]
    return tree


def find_unread(sought: Fields) -> list[Read]:
    """The fields of sections that the code does not read."""
    trees = dict(read_code())
    reader = Reader(sought)
    for _ in range(2):  # classes name each other
        for tree in trees.values():
            reader.learn(tree)
    for path, tree in trees.items():
        if path not in DEFINITIONS:
            reader.read(tree)
    others = [tree for path, tree in trees.items() if path not in DEFINITIONS]
    used = {node.id for tree in others for node in ast.walk(tree) if isinstance(node, ast.Name)}
    used |= {read.name for read in reader.reads}
    for path in DEFINITIONS:
        reader.read(leave_out_checks(trees[path], used - {"parse_settings", "check_references"}))
    weights = {kind.__name__ for kind in sections(RuleDocument) if issubclass(kind, Weights)}
    reader.reads |= {Read(kind, signal) for kind in weights for signal in SIGNALS} | BY_KEY
    return sorted(reader.find_unread())


@pytest.mark.timeout(120)  # it reads all of the code
def test_every_rule_and_setting_is_read() -> None:
    """A field that only its own checks, the simulator or the documents know has no effect, and goes."""
    assert find_unread(find_fields()) == []


@pytest.mark.timeout(120)  # so does this
def test_a_field_that_nothing_reads_is_found() -> None:
    """The test above would find made-up fields, under new names and under those of other classes' attributes."""
    found = find_fields()
    made_up = {
        ("Rules", "made_up"),
        ("SloRules", "url"),
        ("RelayRules", "running"),
        ("Settings", "ttft_s"),
        ("EngineSettings", "total_s"),
        ("MainWeights", "luck"),
    }
    for section, name in made_up:
        found[section][name] = ""
    assert set(find_unread(found)) == made_up


def test_every_request_feature_can_be_set() -> None:
    """What decides whether answers are split is all read from requests: a default that none changes goes."""
    tree = ast.parse((ROOT / "gateway" / "api" / "prepare.py").read_text(encoding="utf-8"))
    (call,) = (
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "RequestFeatures"
    )
    assert {keyword.arg for keyword in call.keywords} == {one.name for one in fields(RequestFeatures)}
