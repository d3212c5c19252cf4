"""The fleet that the commands look at."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.gateway.cli.fleet import Fleet, open_fleet
from tests.gateway.model_dir import make_model_dir


@pytest.fixture(scope="session")
def long_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory with room for long prompts."""
    return make_model_dir(tmp_path_factory.mktemp("long"), context_tokens=100_000)


@pytest.fixture
async def fleet(long_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Fleet]:
    """The fakes, with no Redis named from outside."""
    monkeypatch.delenv("REDIS_URL", raising=False)
    async with open_fleet(long_model_dir, tmp_path) as fleet:
        yield fleet
