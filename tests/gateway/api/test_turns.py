"""An agent's turns through the relay go on from the ids that were written."""

from collections.abc import Iterator

import pytest

from gateway.text.model import ServedModel
from tests.gateway.api.talk import make_model, talk


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedModel]:
    model = make_model(tmp_path_factory.mktemp("talk"))
    yield model
    model.close()


def is_prefix(earlier: list[int], later: list[int]) -> bool:
    """Whether one prompt begins with another."""
    return later[: len(earlier)] == earlier


@pytest.mark.timeout(60)
async def test_odd_tokens_cost_no_hits(model: ServedModel) -> None:
    """Where answers are in tokens and spellings of the model's own, MD hits more and less crosses than without."""
    kept, plain = [await talk(model, 5, reuse=reuse, odd=1) for reuse in (True, False)]

    assert all(is_prefix(*pair) for pair in zip(kept.written, kept.prompts[1:], strict=False))
    assert not any(is_prefix(*pair) for pair in zip(plain.written, plain.prompts[1:], strict=False))
    assert kept.notes == ["kept"] * 4 and plain.notes == []
    assert kept.md_hit_tokens > plain.md_hit_tokens and kept.wan_bytes < plain.wan_bytes
    assert plain.prompts == plain.rendered


@pytest.mark.timeout(60)
async def test_usual_tokens_make_the_engines_prompts(model: ServedModel) -> None:
    """Where answers are as a tokeniser and the template have them, prompts are what an engine renders."""
    kept = await talk(model, 5, reuse=True, odd=0)

    assert kept.prompts == kept.rendered
    assert kept.notes == ["kept"] * 4
