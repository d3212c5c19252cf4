"""Two regions of vLLM and LMCache, started once for all tests of this folder."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from backends.engines.reference.demo_model import MODEL_DIR
from gateway.demo.scenarios import warm_up
from tests.e2e.figures import Figures
from tests.e2e.kit import ON_GPU, RATE_MBIT, VllmKit
from tests.integration.regions import RELAYED, Regions, open_regions

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def python() -> Path:
    """The interpreter of the environment that `make e2e` made."""
    python = Path(os.environ.get("E2E_VENV", ROOT / ".venv-e2e")) / "bin" / "python"
    if not python.exists():
        pytest.fail(f"{python} is not there: run `make e2e`")
    return python


@pytest.fixture(scope="session")
def figures() -> Figures:
    """What this run measures."""
    return Figures()


@pytest.fixture(scope="session")
def kit(python: Path) -> VllmKit:
    """vLLM over LMCache servers, on CPUs or all instances on one GPU."""
    options = ON_GPU if "E2E_GPU" in os.environ else ()
    return VllmKit(python, MODEL_DIR, options=lambda name: options)


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def regions(kit: VllmKit) -> AsyncIterator[Regions]:
    """One P, one RLD, one MD; nobody shall measure their first steps."""
    async with open_regions((1, 1, 1), RELAYED, RATE_MBIT, kit) as regions:
        await warm_up(regions.base_url)
        await regions.gateway.aligner.drained()
        yield regions


@pytest_asyncio.fixture(loop_scope="session")
async def whole(regions: Regions) -> Regions:
    """The regions with everything running and the relay's rules in force."""
    await regions.healed()
    regions.use(RELAYED)
    return regions
