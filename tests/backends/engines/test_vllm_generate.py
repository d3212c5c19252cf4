"""``VllmEngine`` where the engine takes token ids at ``/inference/v1/generate``."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from backends.engines.vllm import VllmEngine
from backends.errors import EngineBroken
from backends.types import Sampling
from tests.backends.engines.test_vllm import DONE, PROMPT, event, leg
from tests.conformance.engine_suite import EngineCase, EngineSuite, ids_of
from tests.fakes.engine import FakeEngine
from tests.fakes.legs import collect
from tests.fakes.script import Script, Verbatim


class TestGenerateConformance(EngineSuite):
    """``VllmEngine`` conforms where the engine has /inference/v1/generate, too."""

    @pytest.fixture
    async def case(self) -> AsyncIterator[EngineCase]:
        """The adapter over a fake that has been probed."""
        gone = FakeEngine()
        async with FakeEngine(generates=True) as fake:
            engine = VllmEngine("e-1", fake.url)
            async with gone:
                unreachable = VllmEngine("gone", gone.url)
            await engine.probe()
            yield EngineCase(engine, unreachable, "demo", tuple(range(20, 40)), fake.max_model_len)
            await engine.aclose()


@pytest.fixture
async def generating() -> AsyncIterator[tuple[FakeEngine, VllmEngine]]:
    """An engine with /inference/v1/generate, and its adapter, which has probed it."""
    async with FakeEngine(generates=True) as fake:
        engine = VllmEngine("e-1", fake.url)
        await engine.probe()
        yield fake, engine
        await engine.aclose()


WHOLE = Sampling(temperature=0.7, top_p=0.9, top_k=5, min_p=0.0, repetition_penalty=1.0, logprobs=2)


@pytest.mark.parametrize("sampling", [WHOLE, Sampling(temperature=0.0, repetition_penalty=1.0)])
async def test_token_endpoint_is_preferred(generating: tuple[FakeEngine, VllmEngine], sampling: Sampling) -> None:
    """A leg that leaves nothing to an engine's defaults goes by ids alone; the body says all that was given."""
    fake, engine = generating
    chunks = await collect(engine, leg(4, min_tokens=1, sampling=sampling, cache_salt="s", priority=2))
    (call,) = fake.calls
    assert call.path == "/inference/v1/generate"
    assert call.sent["token_ids"] == list(PROMPT)
    assert (call.sent["cache_salt"], call.sent["priority"], call.sent["request_id"]) == ("s", 2, "r-1")
    given = {name: getattr(sampling, name) for name in ("temperature", "top_p", "top_k", "min_p", "logprobs")}
    expected = {name: value for name, value in given.items() if value is not None}
    assert call.sent["sampling_params"] == expected | {"repetition_penalty": 1.0, "max_tokens": 4, "min_tokens": 1}
    assert len(ids_of(chunks)) == 4
    if sampling.logprobs:
        (first, *_), token = chunks[0].logprobs or (), chunks[0].token_ids[0]
        assert (first.token_id, first.logprob, first.top) == (token, -0.5, ((token, -0.5), (token + 1, -1.5)))


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(temperature=0.0),
        Sampling(temperature=0.7, top_p=0.9, repetition_penalty=1.0),
        replace(WHOLE, extra={"structured_outputs": {"regex": "a"}}),
        replace(WHOLE, logit_bias={"5": 1.0}),
    ],
)
async def test_token_endpoint_has_defaults_of_its_own(
    generating: tuple[FakeEngine, VllmEngine], sampling: Sampling
) -> None:
    """What a model's generation_config.json may set, or only completions know, is left to completions."""
    fake, engine = generating
    await collect(engine, leg(4, sampling=sampling))
    assert fake.calls[0].path == "/v1/completions"


async def test_a_lost_token_endpoint_is_not_asked_again(generating: tuple[FakeEngine, VllmEngine]) -> None:
    """An engine that comes back without the endpoint is probed again, and gets completions."""
    fake, engine = generating
    fake.generates = False
    await engine.probe()
    await collect(engine, leg(4, sampling=WHOLE))
    assert fake.calls[0].path == "/v1/completions"


@pytest.mark.parametrize("status", [403, 404, 500])
async def test_a_token_endpoint_that_is_off_is_left_alone(status: int) -> None:
    """vLLM without --enable-scale-out has the path and answers 403 on it: legs get completions."""
    async with FakeEngine(generates=True) as fake:
        fake.scale_out = status
        engine = VllmEngine("e", fake.url)
        await engine.probe()
        await collect(engine, leg(4, sampling=WHOLE))
        await engine.aclose()
        assert fake.calls[0].path == "/v1/completions"


async def test_logprobs_of_other_ids_are_refused(generating: tuple[FakeEngine, VllmEngine]) -> None:
    """Logprobs that do not belong to the ids beside them break the leg."""
    fake, engine = generating
    text = '{"choices":[{"token_ids":[1],"finish_reason":"length","logprobs":{"content":[{"token_id":2}]}}]}'
    fake.script = Script(fault=Verbatim((event(text), DONE)))
    with pytest.raises(EngineBroken):
        await collect(engine, leg(sampling=WHOLE))
