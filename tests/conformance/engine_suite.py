"""What every implementation of ``Engine`` must do. Subclass ``EngineSuite`` with a fixture ``case``.

    class TestMyEngine(EngineSuite):
        @pytest.fixture
        async def case(self) -> AsyncIterator[EngineCase]: ...

The engine behind ``case`` may be real: nothing here depends on what it says, only on its greedy answers being a
function of the ids so far.
"""

import asyncio
from dataclasses import dataclass

import msgspec
import pytest

from backends.base import Engine
from backends.errors import EngineRejected, EngineUnavailable
from backends.types import LegChunk, LegRequest, Sampling
from tests.fakes.legs import collect, open_leg

GREEDY = Sampling(temperature=0.0, ignore_eos=True)


@dataclass(frozen=True, slots=True)
class EngineCase:
    """An engine that serves ``model`` and is used by nobody else; ``unreachable`` is one where nothing listens."""

    engine: Engine
    unreachable: Engine
    model: str
    prompt: tuple[int, ...]
    max_model_len: int

    def leg(
        self, prompt: tuple[int, ...], max_tokens: int, sampling: Sampling = GREEDY, min_tokens: int = 0
    ) -> LegRequest:
        """A leg of this case's model."""
        return LegRequest("conformance", self.model, prompt, max_tokens, min_tokens, sampling)


def ids_of(chunks: list[LegChunk]) -> tuple[int, ...]:
    """All ids in order."""
    return tuple(token for chunk in chunks for token in chunk.token_ids)


async def idle(engine: Engine) -> None:
    """Wait until the engine says that nothing runs."""
    async with asyncio.timeout(10):
        while True:
            load = await engine.load()
            if load.running == load.waiting == 0:
                return


class EngineSuite:
    """One engine, its legs and its state."""

    async def test_a_leg_ends_at_its_limit(self, case: EngineCase) -> None:
        """Exactly max_tokens ids come, one finish of reason length, and usage that agrees."""
        chunks = await collect(case.engine, case.leg(case.prompt, 12))
        assert len(ids_of(chunks)) == 12
        assert [chunk.finish_reason for chunk in chunks if chunk.finish_reason] == ["length"]
        usages = [chunk.usage for chunk in chunks if chunk.usage]
        assert usages[-1].prompt_tokens == len(case.prompt)
        assert usages[-1].completion_tokens == 12

    async def test_nothing_but_usage_follows_the_finish(self, case: EngineCase) -> None:
        """The finish comes with or after the last id."""
        chunks = await collect(case.engine, case.leg(case.prompt, 3))
        finish = next(place for place, chunk in enumerate(chunks) if chunk.finish_reason)
        assert ids_of(chunks[finish + 1 :]) == ()

    async def test_one_token(self, case: EngineCase) -> None:
        """A limit of one gives one id."""
        assert len(ids_of(await collect(case.engine, case.leg(case.prompt, 1)))) == 1

    async def test_a_split_run_equals_the_whole(self, case: EngineCase) -> None:
        """Continuing prompt + the first n ids gives the ids that follow, for every n."""
        whole = ids_of(await collect(case.engine, case.leg(case.prompt, 8)))
        for cut in range(1, 8):
            rest = await collect(case.engine, case.leg(case.prompt + whole[:cut], 8 - cut))
            assert ids_of(rest) == whole[cut:]

    async def test_naming_a_rank_changes_no_token(self, case: EngineCase) -> None:
        """A leg for the first data-parallel rank gives what any leg gives, also where there are no ranks."""
        leg = case.leg(case.prompt, 6)
        whole = ids_of(await collect(case.engine, leg))
        assert ids_of(await collect(case.engine, msgspec.structs.replace(leg, data_parallel_rank=0))) == whole

    async def test_concurrent_legs_do_not_mix(self, case: EngineCase) -> None:
        """Several legs at once give what they give one by one."""
        prompts = [case.prompt[start:] for start in range(4)]
        alone = [ids_of(await collect(case.engine, case.leg(prompt, 6))) for prompt in prompts]
        together = await asyncio.gather(*(collect(case.engine, case.leg(prompt, 6)) for prompt in prompts))
        assert [ids_of(chunks) for chunks in together] == alone

    async def test_a_stop_token_ends_the_leg(self, case: EngineCase) -> None:
        """The stop token is the last id, and is named as the reason."""
        whole = ids_of(await collect(case.engine, case.leg(case.prompt, 8)))
        stop = whole[4]
        sampling = Sampling(temperature=0.0, ignore_eos=True, stop_token_ids=(stop,))
        chunks = await collect(case.engine, case.leg(case.prompt, 8, sampling))
        assert ids_of(chunks) == whole[: whole.index(stop) + 1]
        assert [(chunk.finish_reason, chunk.stop_reason) for chunk in chunks if chunk.finish_reason] == [("stop", stop)]

    async def test_min_tokens_puts_a_stop_off(self, case: EngineCase) -> None:
        """A stop token cannot come before min_tokens ids."""
        first = ids_of(await collect(case.engine, case.leg(case.prompt, 1)))[0]
        sampling = Sampling(temperature=0.0, ignore_eos=True, stop_token_ids=(first,))
        chunks = await collect(case.engine, case.leg(case.prompt, 8, sampling, min_tokens=4))
        assert len(ids_of(chunks)) >= 4
        assert first not in ids_of(chunks)[:4]

    @pytest.mark.parametrize("alternatives", [0, 3])
    async def test_logprobs_are_aligned(self, case: EngineCase, alternatives: int) -> None:
        """Each id has a finite log-probability and at most so many alternatives, the likeliest first."""
        sampling = Sampling(temperature=0.0, ignore_eos=True, logprobs=alternatives)
        chunks = [chunk for chunk in await collect(case.engine, case.leg(case.prompt, 5, sampling)) if chunk.token_ids]
        assert len(ids_of(chunks)) == 5
        for chunk in chunks:
            assert chunk.logprobs is not None
            assert tuple(entry.token_id for entry in chunk.logprobs) == chunk.token_ids
            for entry in chunk.logprobs:
                assert -10_000 < entry.logprob <= 0
                assert len(entry.top) == alternatives
                assert [logprob for _, logprob in entry.top] == sorted((p for _, p in entry.top), reverse=True)

    async def test_closing_a_leg_aborts_it(self, case: EngineCase) -> None:
        """A leg that is closed after its first ids stops running on the engine."""
        limit = case.max_model_len - len(case.prompt)
        leg = open_leg(case.engine, case.leg(case.prompt, limit))
        assert (await anext(leg)).token_ids
        await leg.aclose()
        await idle(case.engine)

    async def test_cancelling_a_leg_aborts_it(self, case: EngineCase) -> None:
        """A task that is cancelled inside a leg leaves nothing running on the engine."""
        limit = case.max_model_len - len(case.prompt)
        started = asyncio.Event()

        task = asyncio.create_task(case.engine.generate(case.leg(case.prompt, limit), lambda chunk: started.set()))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await idle(case.engine)

    async def test_a_prompt_beyond_the_context_is_the_callers_fault(self, case: EngineCase) -> None:
        """Too long a prompt is rejected with a 4xx and a message, and the engine goes on."""
        too_long = case.prompt * (case.max_model_len // len(case.prompt) + 1)
        with pytest.raises(EngineRejected) as caught:
            await collect(case.engine, case.leg(too_long, 4))
        assert 400 <= caught.value.status < 500
        assert caught.value.message
        assert len(ids_of(await collect(case.engine, case.leg(case.prompt, 2)))) == 2

    async def test_probe(self, case: EngineCase) -> None:
        """The probe names the model and its context, and says the same each time."""
        capabilities = await case.engine.probe()
        assert case.model in capabilities.models
        assert capabilities.max_model_len == case.max_model_len
        assert capabilities.streams_token_ids
        assert capabilities.boot_id == (await case.engine.probe()).boot_id
        assert capabilities.data_parallel_size >= 1

    async def test_load_counts_running_legs(self, case: EngineCase) -> None:
        """A leg shows in the load while it runs, and the KV use is a share."""
        await idle(case.engine)
        leg = open_leg(case.engine, case.leg(case.prompt, case.max_model_len - len(case.prompt)))
        await anext(leg)
        load = await case.engine.load()
        assert load.running == 1
        assert 0 <= load.kv_usage <= 1
        await leg.aclose()
        await idle(case.engine)

    async def test_nothing_listens(self, case: EngineCase) -> None:
        """A leg, a probe and a load say that the engine is not available."""
        with pytest.raises(EngineUnavailable):
            await collect(case.unreachable, case.leg(case.prompt, 1))
        with pytest.raises(EngineUnavailable):
            await case.unreachable.probe()
        with pytest.raises(EngineUnavailable):
            await case.unreachable.load()

    async def test_close_twice(self, case: EngineCase) -> None:
        """Closing is idempotent, and a closed engine has no connection left to close."""
        await collect(case.engine, case.leg(case.prompt, 1))
        await case.engine.aclose()
        await case.engine.aclose()
