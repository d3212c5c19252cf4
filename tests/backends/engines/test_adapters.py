"""Engine adapters are found by name, and what is wrong with one is said with its key."""

from pathlib import Path

import pytest

from backends.engines.adapters import BadEngine, EngineSpec, build_engine
from backends.engines.vllm import VllmEngine
from gateway.app import Gateway
from gateway.config.fleet_settings import BadSettings
from gateway.config.settings import parse_settings
from tests.fakes.index import KnownIndex
from tests.gateway.model_dir import model_dir
from tests.valkey import make_away

__all__ = ["model_dir"]

SPEC = EngineSpec("e-1", "http://127.0.0.1:1")
MODULE = """
from backends.engines.adapters import BadEngine
from backends.engines.vllm import VllmEngine

def make(spec):
    if "color" not in spec.options:
        raise ValueError("a color is needed")
    if spec.options["color"] == "mauve":
        raise BadEngine("options.color", "nobody knows mauve")
    return VllmEngine(f"{spec.id} in {spec.options['color']}", spec.url)
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package with two adapters, one of which is not there."""
    (tmp_path / "colorful_pdd.py").write_text(MODULE)
    info = tmp_path / "colorful_pdd-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: colorful-pdd\nVersion: 1.0\n")
    points = "[pdd_gateway.engines]\ncolorful = colorful_pdd:make\nmissing = colorful_pdd:take\n"
    (info / "entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(str(tmp_path))


def test_a_built_in_adapter() -> None:
    """``vllm`` needs nothing installed."""
    engine = build_engine("vllm", SPEC)
    assert isinstance(engine, VllmEngine)
    assert engine.id == "e-1"


@pytest.mark.usefixtures("installed")
def test_an_installed_adapter_gets_its_options() -> None:
    """The entry point's factory is given the spec as it stands in the settings."""
    assert build_engine("colorful", EngineSpec("e-1", "http://h", options={"color": "red"})).id == "e-1 in red"


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("kind", "options", "key", "words"),
    [
        ("nonsense", {}, "kind", "there are colorful, missing, sglang, vllm"),
        ("missing", {}, "kind", "cannot be loaded"),
        ("vllm", {"port": 1}, "options.port", "no such option"),
        ("sglang", {"port": 1}, "options", "unknown field `port`"),
        ("sglang", {"prefill": {"url": "ftp://h"}}, "options", "not an http or https URL"),
        ("colorful", {}, "options", "a color is needed"),
        ("colorful", {"color": "mauve"}, "options.color", "nobody knows mauve"),
    ],
)
def test_what_cannot_be_built_is_named(kind: str, options: dict[str, object], key: str, words: str) -> None:
    """The error names the key that is wrong, and what there is instead."""
    with pytest.raises(BadEngine, match=words) as caught:
        build_engine(kind, EngineSpec("e-1", "http://h", options=options))
    assert caught.value.key == key


def test_the_key_is_not_shown() -> None:
    """A spec that gets into a log does not carry the engine's key there."""
    assert "hidden" not in repr(EngineSpec("e-1", "http://h", api_key="hidden"))


def test_an_unknown_kind_stops_the_start(model_dir: Path) -> None:
    """The gateway names the engine and the key."""
    settings = parse_settings(
        {
            "models": [{"name": "tiny", "path": str(model_dir), "kv_bytes_per_token": 1}],
            "engines": [
                {"id": "p1", "role": "P", "model": "tiny", "region": "a", "url": "http://h", "kind": "nonsense"}
            ],
        }
    )
    with pytest.raises(BadSettings, match=r"engines\[p1\]\.kind: there is no engine adapter 'nonsense'"):
        Gateway(settings, KnownIndex({}), make_away())
