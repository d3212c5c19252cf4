"""What holds for every test: nothing blocks the event loop, and a busy machine is no failure."""

from collections.abc import Iterator

import pytest
from blockbuster import blockbuster_ctx
from hypothesis import HealthCheck, settings

from tests.integration.forks import Forker, open_forker

settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")


@pytest.fixture(autouse=True)
def unblocked_loop(request: pytest.FixtureRequest) -> Iterator[None]:
    """A fast test fails when something blocks its event loop; slow ones start processes, which does."""
    if request.node.get_closest_marker("slow"):
        yield
        return
    with blockbuster_ctx() as guard:
        for name in ("os.stat", "os.scandir", "os.listdir", "io.TextIOWrapper.read"):
            # redis-py looks up its own version once, on the first connection.
            guard.functions[name].can_block_in("redis/utils.py", "get_lib_version")
        yield


@pytest.fixture(scope="session")
def forker() -> Iterator[Forker]:
    """What engines are forked from."""
    with open_forker() as forker:
        yield forker
