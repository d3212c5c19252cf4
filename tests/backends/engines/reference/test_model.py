from functools import cache
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from backends.engines.reference.blocks import BlockPool
from backends.engines.reference.model import ModelRunner, UnsupportedModel, read_shape
from backends.engines.reference.scheduler import Scheduler, StepLimits
from backends.engines.reference.sequence import Params, Sequence

pytestmark = pytest.mark.timeout(120)

BLOCKS, BLOCK = 160, 16


def random_prompt(tokens: int, seed: int = 0) -> list[int]:
    """Token ids without the EOS token."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, 320, (tokens,), generator=generator).tolist()


def run_greedy(runner: ModelRunner, scheduler: Scheduler, prompts: list[list[int]], tokens: int) -> list[list[int]]:
    """Greedy answers of several prompts, served together."""
    sequences = [Sequence(str(i), list(prompt), Params(max_tokens=tokens), BLOCK) for i, prompt in enumerate(prompts)]
    for sequence in sequences:
        scheduler.add(sequence)
    while any(sequence.output_tokens < tokens for sequence in sequences):
        decision = scheduler.schedule()
        logits = runner.forward(decision.work)
        scheduler.complete(decision.work)
        for item, row in zip((item for item in decision.work if item.samples), logits, strict=True):
            item.sequence.tokens.append(int(row.argmax()))
            if item.sequence.output_tokens == tokens:
                scheduler.finish(item.sequence)
    return [sequence.tokens[sequence.prompt_tokens :] for sequence in sequences]


def by_transformers(directory: Path, prompt: list[int], tokens: int) -> list[int]:
    """Greedy answer of the plain model, recomputed from the start for each token."""
    return list(_answer(directory, tuple(prompt), tokens))


@cache
def _answer(directory: Path, prompt: tuple[int, ...], tokens: int) -> list[int]:
    model = AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager").eval()
    ids = list(prompt)
    with torch.inference_mode():
        for _ in range(tokens):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]


@pytest.mark.parametrize("family", ["llama", "qwen"])
@pytest.mark.parametrize("step_tokens", [512, 64, 7])
def test_greedy_answers_equal_transformers_whatever_the_chunks_and_the_batch(
    request: pytest.FixtureRequest, family: str, step_tokens: int
) -> None:
    """Three prompts of different lengths, served together in float32, give the ids of the plain model."""
    directory: Path = request.getfixturevalue(family)
    runner = ModelRunner(directory, read_shape(directory, "float32"), BLOCKS, BLOCK)
    prompts = [random_prompt(n, n) for n in (150, 33, 1)]
    scheduler = Scheduler(BlockPool(BLOCKS, BLOCK), StepLimits(step_tokens=step_tokens))
    assert run_greedy(runner, scheduler, prompts, 12) == [by_transformers(directory, p, 12) for p in prompts]


@pytest.mark.parametrize("cut", [1, 15, 16, 17, 31, 32, 39])
def test_continuing_elsewhere_or_from_the_cache_gives_the_same_ids(llama: Path, cut: int) -> None:
    """Prompt + first ids of the answer, on another engine or on one with a warm cache, continue the answer."""
    shape = read_shape(llama, "float32")
    prompt = random_prompt(100)
    first = ModelRunner(llama, shape, BLOCKS, BLOCK)
    scheduler = Scheduler(BlockPool(BLOCKS, BLOCK), StepLimits())
    (whole,) = run_greedy(first, scheduler, [prompt], 40)
    (warm,) = run_greedy(first, scheduler, [prompt + whole[:cut]], 40 - cut)
    cold_scheduler = Scheduler(BlockPool(BLOCKS, BLOCK), StepLimits(step_tokens=50))
    (cold,) = run_greedy(ModelRunner(llama, shape, BLOCKS, BLOCK), cold_scheduler, [prompt + whole[:cut]], 40 - cut)
    assert warm == cold == whole[cut:]


def test_bfloat16_runs(llama: Path) -> None:
    """The pool and the model take half the memory, and answers come."""
    shape = read_shape(llama, "bfloat16")
    assert shape.kv_bytes_per_token * 2 == read_shape(llama, "float32").kv_bytes_per_token
    runner = ModelRunner(llama, shape, BLOCKS, BLOCK)
    (answer,) = run_greedy(
        runner, Scheduler(BlockPool(BLOCKS, BLOCK), StepLimits(step_tokens=50)), [random_prompt(90)], 5
    )
    assert len(answer) == 5


def test_kv_read_and_written_back_is_unchanged(llama: Path) -> None:
    """What leaves the pool for the store comes back bit for bit, in any blocks."""
    runner = ModelRunner(llama, read_shape(llama, "float32"), BLOCKS, BLOCK)
    values = torch.randn(2, 2, 32, 32)
    runner.write_kv(runner.slots([9, 3], 0, 32), values)
    assert torch.equal(runner.read_kv(runner.slots([9, 3], 0, 32)), values)
    assert torch.equal(runner.read_kv(runner.slots([9, 3], 16, 32)), values[:, :, 16:])


def test_other_model_families_are_refused(tmp_path: Path) -> None:
    """A clear error names the model type or the missing file."""
    with pytest.raises(UnsupportedModel, match=r"config\.json"):
        read_shape(tmp_path, "float32")
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(UnsupportedModel, match="gpt2"):
        read_shape(tmp_path, "float32")
