"""The package without extras, as pip installs it, serves; what only extras need is neither there nor imported."""

import json
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import yaml

from gateway.demo.processes import Child
from tests.gateway.model_dir import make_model_dir
from tests.readme import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

LOOK = """
import importlib.util, json, pkgutil, sys
import backends, gateway, policies

EXTRA = ("backends.engines.reference", "gateway.telemetry.otlp")
for package in (backends, gateway, policies):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not module.name.startswith(EXTRA) and not module.name.endswith("__main__"):
            importlib.import_module(module.name)
heavy = ("torch", "transformers", "lmcache", "litellm", "openai", "opentelemetry")
found = [name for name in heavy if importlib.util.find_spec(name)]
print(json.dumps({"installed": found, "imported": [n for n in heavy if n in sys.modules], "from": gateway.__path__[0]}))
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that holds the package and what it cannot do without."""
    folder = tmp_path_factory.mktemp("clean")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    interpreter = folder / "venv" / "bin" / "python"
    pip: list[str | Path] = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        interpreter,
        "install",
        "--quiet",
        "--disable-pip-version-check",
    ]
    subprocess.run([*pip, "--no-compile", "--constraint", ROOT / "constraints.txt", ROOT], check=True, cwd=folder)
    return interpreter


def test_every_module_imports(python: Path, tmp_path: Path) -> None:
    """All modules but the reference engine's and the span exporter's import with the plain dependencies only."""
    done = subprocess.run([python, "-W", "error", "-c", LOOK], check=True, cwd=tmp_path, capture_output=True, text=True)
    found = json.loads(done.stdout)
    assert (found["installed"], found["imported"]) == ([], [])
    assert Path(found["from"]).is_relative_to(python.parents[1])


async def test_it_serves(python: Path, tmp_path: Path) -> None:
    """The command starts before engines that are not there, and says so."""
    settings = {
        "models": [{"name": "tiny", "path": str(make_model_dir(tmp_path / "model")), "kv_bytes_per_token": 1}],
        "engines": [
            {"id": role, "role": role, "model": "tiny", "region": "a", "url": "http://127.0.0.1:9", "kind": kind}
            for role, kind in (("P", "vllm"), ("MD", "sglang"))
        ],
        "upstreams": [{"id": "up", "url": "http://127.0.0.1:9"}],
    }
    config = tmp_path / "gateway.yaml"
    config.write_text(yaml.safe_dump(settings))
    command = [python.with_name("pdd"), "serve", "--config", config, "--listen", "127.0.0.1:0", "--die-with-parent"]
    gateway = Child("gateway", tmp_path, [str(part) for part in command], 60.0)
    await gateway.start()
    try:
        async with httpx.AsyncClient(base_url=gateway.url) as client:
            assert (await client.get("/health")).status_code == 200
            assert (await client.get("/ready")).status_code == 503
            assert (await client.get("/v1/models")).json()["data"][0]["id"] == "tiny"
    finally:
        await gateway.stop()


def test_an_external_model_says_what_it_needs(python: Path, tmp_path: Path) -> None:
    """Settings that name an external model stop the start and name the extra."""
    settings = {
        "models": [{"name": "tiny", "path": str(make_model_dir(tmp_path / "model")), "kv_bytes_per_token": 1}],
        "engines": [{"id": "P", "role": "P", "model": "tiny", "region": "a", "url": "http://127.0.0.1:9"}],
        "external": [{"model": "openai/gpt-4o-mini"}],
    }
    config = tmp_path / "gateway.yaml"
    config.write_text(yaml.safe_dump(settings))
    command = [str(python.with_name("pdd")), "serve", "--config", str(config), "--listen", "127.0.0.1:0"]
    done = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "external: LiteLLM is needed (in a checkout: pip install '.[litellm]')" in done.stderr
