"""Cost models: chips and models to seconds, and the bathtub that follows from chunks."""

from dataclasses import replace

import pytest

from policies.simulator.chips import CHIPS, MFU
from policies.simulator.engine_model import EngineModel, as_decoder, build_engine, measured_engine
from policies.simulator.llms import LLMS
from policies.valley import PrefillCurve

H100, V3 = CHIPS["H100"], LLMS["deepseek-v3"]


def test_every_chip_and_model_has_its_source() -> None:
    """Nothing is taken from nowhere, and names are those in the tables."""
    assert all(chip.source and chip.name == name for name, chip in CHIPS.items())
    assert all(llm.source and llm.name == name and llm.kv_read_bytes <= llm.kv_bytes for name, llm in LLMS.items())


def test_kv_sizes_are_the_published_ones() -> None:
    """Known figures: V3 has 70 KB a token in bfloat16, V3.2 48 KB in fp8, Qwen3-235B 96 KB in fp8."""
    assert V3.kv_bytes == 70_272
    assert LLMS["deepseek-v3.2"].kv_bytes == 48_068
    assert LLMS["qwen3-235b"].kv_bytes == 96_256


def test_prefill_is_bound_by_compute() -> None:
    """A whole chunk takes its operations at the assumed share of the peak, and more chips less time."""
    dense = replace(V3, prefill_pair_flops=0.0, experts=1)
    engine = build_engine(H100, dense, chips=8, group=16)
    expected_s = engine.step_s + 8192 * 2 * 37e9 / (8 * 1979e12 * MFU)
    assert engine.chunk_s(8192, 0) == pytest.approx(expected_s)
    assert build_engine(H100, dense, chips=16, group=16).chunk_s(8192, 0) < 0.6 * expected_s


def test_attention_grows_with_the_square() -> None:
    """The part above the linear one is four times as much for twice the prompt."""
    engine = replace(build_engine(H100, V3, chips=16, group=16), padding_tokens=0.0, step_s=0.0, weights_s=0.0)
    flat = replace(engine, pair_s=0.0)
    quadratic = [engine.prefill_s(tokens) - flat.prefill_s(tokens) for tokens in (32_768, 65_536)]
    assert quadratic[1] == pytest.approx(4 * quadratic[0], rel=0.01)


def test_decode_is_bound_by_memory() -> None:
    """One answer costs the weights; each further one its KV only, until compute is the longer."""
    engine = as_decoder(build_engine(CHIPS["H200"], LLMS["qwen3-235b"], chips=8, group=8))
    alone = engine.decode_step_s(1, 8000)
    assert alone == pytest.approx(engine.step_s + engine.weights_s + 8000 * engine.kv_read_s)
    assert engine.decode_step_s(11, 8000) - alone == pytest.approx(80_000 * engine.kv_read_s)


def test_models_that_do_not_fit_are_refused() -> None:
    """Weights that leave no room for KV are an error, not a negative memory."""
    with pytest.raises(ValueError, match="does not fit"):
        build_engine(H100, V3, chips=8, group=8)


def test_a_measured_engine_repeats_its_curve() -> None:
    """What was profiled comes out again: the step's constant part, the slope, and the time between tokens."""
    engine = measured_engine(PrefillCurve((64, 1064), (0.02, 0.12)), 0.03)
    assert engine.prefill_s(564) == pytest.approx(0.07)
    assert engine.decode_step_s(1, 0) == pytest.approx(0.03, rel=0.01)


def efficiency(engine: EngineModel, prompt_tokens: int, hit: float) -> float:
    """Least time that the uncached tokens need by time that they take alone, chunk by chunk."""
    cached = round(prompt_tokens * hit)
    new = prompt_tokens - cached
    bare = replace(engine, step_s=0.0, weights_s=0.0, padding_tokens=0.0, budget_tokens=10**9)
    return bare.prefill_s(new, cached) / engine.prefill_s(new, cached)


def test_the_valleys_of_the_bathtub_come_from_chunks() -> None:
    """Of a 64K prompt in chunks of 16K, hits that leave a small last chunk are worse than slightly lower ones.

    That is at 20 to 25 %, at 45 to 50 % and at 70 to 75 %: just before a whole number of chunks is cached.
    """
    engine = build_engine(CHIPS["910B"], LLMS["qwen3.5-397b"], chips=8, group=8)
    for whole in (1, 2, 3):
        edge = 1 - whole / 4
        over = efficiency(engine, 65_536, edge - 0.01)
        assert over < efficiency(engine, 65_536, edge + 0.001)
        assert over < efficiency(engine, 65_536, edge - 0.2)
        curve = engine.curve()
        jump_s = curve.at(whole * 16_384 + 1) - curve.at(whole * 16_384)
        assert jump_s > engine.step_s + engine.padding_tokens * engine.token_s
