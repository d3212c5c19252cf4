"""The two SDKs that the tests have anyway, against a relay; ``make compat`` tries more of them, over all families."""

import sys

import pytest

from tests.compat.drive import open_stands, run_client

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.mark.parametrize("name", ["openai_python", "anthropic_python"])
async def test_all_features_work_through_a_relay(name: str) -> None:
    """Each feature works, and each of P, RLD and MD had a part in it."""
    async with open_stands(["qwen3", "gpt-oss"]) as stands:
        outcome = await run_client([sys.executable, "-m", f"tests.compat.clients.{name}"], stands)
        assert {one: end for one, end in outcome.features.items() if end != "ok"} == {}
        assert len(outcome.features) > 5
        for stand in stands:
            assert all(stand.legs.values()), stand.legs
