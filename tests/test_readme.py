"""README.md says what the code does."""

import re
from typing import Any

import msgspec
import yaml
from starlette.routing import Route

from backends.engines.adapters import EngineSpec, build_engine
from gateway.api.admin import Pages
from gateway.api.app import ApiState, build_app
from gateway.auth.admin import AdminAuth
from gateway.config.settings import AuthSettings, parse_settings
from gateway.fleet.pools import Pools
from gateway.passthrough.endpoint import PassthroughService, pass_routes
from gateway.passthrough.servers import Servers
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.timeline import Timelines
from policies.rules import parse_rules
from tests.fakes.answers import ScriptedGenerator
from tests.gateway.api.access import make_access
from tests.readme import README, fill


def test_tables_are_those_of_the_code() -> None:
    """Settings, rules, metrics, commands and modules are documented as they are; `python -m tests.readme` mends it."""
    text = README.read_text(encoding="utf-8")
    assert fill(text) == text


def test_every_route_is_documented() -> None:
    """The routes table names exactly the gateway's routes."""
    state = ApiState(
        models={},
        generator=ScriptedGenerator(lambda _: []),
        created=0,
        access=make_access(),
        pages=Pages(list, lambda _: None, lambda: (b"", "text/plain")),
        door=AdminAuth(is_open=True),
    )
    served = set()
    passing = PassthroughService(Servers([], Pools([], float), ()), Timelines(float), Metrics(), state.access.gate)
    passed = pass_routes(passing, state.access, state.limits)
    for route in build_app(state, passed).routes:
        assert isinstance(route, Route)
        for method in (route.methods or set()) - {"HEAD"}:
            served.add(f"{method} {re.sub(r':[a-z]+}', '}', route.path)}")
    documented = set(re.findall(r"^\| `((?:GET|POST|PUT|DELETE) [^`]+)` \|", README.read_text(encoding="utf-8"), re.M))
    assert documented == served


def read_blocks() -> list[Any]:
    """What the YAML blocks hold."""
    blocks = re.findall(r"^```yaml\n(.*?)^```", README.read_text(encoding="utf-8"), re.M | re.S)
    return [yaml.safe_load(block) for block in blocks]


def test_sections_and_rules_are_such() -> None:
    """A YAML block that shows `auth` is a section of the settings, and one that shows `limits` are rules."""
    documents = read_blocks()
    assert any("auth" in document and msgspec.convert(document["auth"], AuthSettings) for document in documents)
    assert any("limits" in document and parse_rules(document) for document in documents)


def test_every_configuration_is_one() -> None:
    """A YAML block with engines is a file that the gateway takes, and its engines' options are their adapters'."""
    shown = [parse_settings(document) for document in read_blocks() if "engines" in document]
    assert len(shown) >= 3
    for engine in (engine for settings in shown for engine in settings.engines):
        assert build_engine(engine.kind, EngineSpec(engine.id, engine.url, None, engine.options)).id == engine.id
