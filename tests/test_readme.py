"""The READMEs say what the code does."""

import argparse
import ast
import re
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
import yaml
from starlette.routing import Route

from backends.engines.adapters import EngineSpec, build_engine
from gateway.api.admin import Pages
from gateway.api.app import ApiState, build_app
from gateway.auth.admin import AdminAuth
from gateway.config.settings import AuthSettings, parse_settings
from gateway.demo import command as demo
from gateway.demo.cluster import MODEL
from gateway.fleet.pools import Pools
from gateway.operator.routes import Operator, operator_routes
from gateway.passthrough.endpoint import PassthroughService, pass_routes
from gateway.passthrough.servers import Servers
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.timeline import Timelines
from policies.rules import parse_rules
from tests.fakes.answers import ScriptedGenerator
from tests.gateway.api.access import make_access
from tests.readme import ROOT, TABLES, fill, find_table, read_document, tables

GATEWAY = "gateway/README.md"
PATH = r"(?:gateway|backends|policies|docker|tests)/[\w./-]+"
WHERE_ENTRY = re.compile(r"`([^`]+\.\w+)`(?:: ((?:`[\w.]+`(?:, )?)+))?")
MOST_LINES = {"README.md": 250, "CONTRIBUTING.md": 50}


@pytest.mark.parametrize("name", TABLES)
def test_tables_are_those_of_the_code(name: str) -> None:
    """Settings, rules, metrics, reasons and commands are documented as they are; `python -m tests.readme` mends it."""
    text = read_document(name)
    assert fill(text, TABLES[name]) == text


def test_every_table_has_its_place() -> None:
    """Each generated table stands in one document."""
    assert sorted(table for held in TABLES.values() for table in held) == sorted(tables())


@pytest.mark.parametrize("name", MOST_LINES)
def test_what_is_read_first_is_short(name: str) -> None:
    """README and CONTRIBUTING stay short; what is longer stands beside what it documents."""
    assert len(read_document(name).splitlines()) <= MOST_LINES[name]


@pytest.mark.parametrize("name", ["gateway", "backends", "policies"])
def test_every_package_has_its_line(name: str) -> None:
    """The README of a top-level package tells of each of its packages in one line, and of none that is not there."""
    listed = re.findall(rf"^\| `({name}[\w/]*)` \|", read_document(f"{name}/README.md"), re.M)
    packages = [str(path.parent.relative_to(ROOT)) for path in (ROOT / name).rglob("__init__.py")]
    assert sorted(listed) == sorted(packages)


def test_everything_is_where_the_table_says() -> None:
    """Each row of "Where is ...?" names files that are there and define the names that stand behind them."""
    _, inside, _ = find_table(read_document(GATEWAY), "where")
    rows = inside.splitlines()[2:]
    assert len(rows) > 30
    for row in rows:
        entries = WHERE_ENTRY.findall(row.split("|")[2])
        assert entries, row
        for path, names in entries:
            assert (ROOT / path).is_file(), row
            wanted = set(re.findall(r"`([\w.]+)`", names))
            assert not wanted or wanted <= defined_names(path), row


def defined_names(path: str) -> set[str]:
    """Return the names that a module defines, and those in its classes as Class.name."""
    found = set()
    for node in ast.parse((ROOT / path).read_text(encoding="utf-8")).body:
        found |= names_of(node)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{name}" for inner in node.body for name in names_of(inner)}
    return found


def names_of(node: ast.stmt) -> set[str]:
    """Return what a statement defines."""
    match node:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return {name}
        case ast.AnnAssign(target=ast.Name(id=name)):
            return {name}
        case ast.Assign(targets=targets):
            return {target.id for target in targets if isinstance(target, ast.Name)}
    return set()


@pytest.mark.parametrize("name", TABLES)
def test_every_named_file_is_there(name: str) -> None:
    """A path in backticks, wherever it stands in a document, is a file or a folder of the repository."""
    for path in re.findall(rf"`({PATH})`", read_document(name)):
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize("name", TABLES)
def test_every_link_leads_somewhere(name: str) -> None:
    """A link to another document, a picture or a heading finds it."""
    for target in re.findall(r"\]\(([^)]+)\)", read_document(name)):
        if target.startswith("https://"):
            continue
        path, _, heading = target.partition("#")
        found = ((ROOT / name).parent / path).resolve() if path else ROOT / name
        assert found.exists(), target
        assert not heading or heading in anchors(found.read_text(encoding="utf-8")), target


def anchors(text: str) -> set[str]:
    """Return the names under which a document's headings are linked to, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_route_is_documented() -> None:
    """The routes table names exactly the gateway's routes."""
    state = ApiState(
        models={},
        generator=ScriptedGenerator(lambda _: []),
        created=0,
        access=make_access(),
        pages=Pages(list, lambda _: None, lambda: (b"", "text/plain")),
        admin_auth=AdminAuth(is_open=True),
    )
    served = set()
    passing = PassthroughService(Servers([], Pools([], float), ()), Timelines(float), Metrics(), state.access.admission)
    passed = pass_routes(passing, state.access, state.limits)
    # No handler is called, so that nothing of an operator's desk is needed.
    page = operator_routes(cast(Operator, SimpleNamespace(view=None, is_draining=bool)), state.admin_auth)
    for route in build_app(state, [*passed, *page]).routes:
        assert isinstance(route, Route)
        for method in (route.methods or set()) - {"HEAD"}:
            served.add(f"{method} {re.sub(r':[a-z]+}', '}', route.path)}")
    documented = set(re.findall(r"^\| `((?:GET|POST|PUT|DELETE) [^`]+)` \|", read_document(GATEWAY), re.M))
    assert documented == served


def read_blocks() -> list[Any]:
    """Return what the YAML blocks of all documents hold."""
    texts = [block for name in TABLES for block in re.findall(r"^```yaml\n(.*?)^```", read_document(name), re.M | re.S)]
    return [yaml.safe_load(text) for text in texts]


def test_sections_and_rules_are_such() -> None:
    """A YAML block that shows `auth` is a section of the settings, and one that shows `limits` are rules."""
    documents = read_blocks()
    assert any("auth" in document and msgspec.convert(document["auth"], AuthSettings) for document in documents)
    assert any("limits" in document and parse_rules(document) for document in documents)


def test_every_configuration_is_one() -> None:
    """A YAML block with engines is a file that the gateway takes, and its engines' options are their adapters'."""
    shown = [parse_settings(document) for document in read_blocks() if "engines" in document]
    assert len(shown) >= 4
    for engine in (engine for settings in shown for engine in settings.engines):
        assert build_engine(engine.kind, EngineSpec(engine.id, engine.url, None, engine.options)).id == engine.id


def test_the_clients_example_speaks_to_the_demo() -> None:
    """README's client asks the address and the model of `make demo`."""
    (example,) = re.findall(r"^```python\n(.*?)^```", read_document("README.md"), re.M | re.S)
    compile(example, "README.md", "exec")
    parser = argparse.ArgumentParser()
    demo.add_arguments(parser)
    assert f'base_url="http://{parser.parse_args([]).listen}/v1"' in example
    assert f'model="{MODEL}"' in example
