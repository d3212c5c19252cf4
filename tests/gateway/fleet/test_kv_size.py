"""KV sizes of real models, computed by hand beside what the code makes of their config.json."""

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.types import KvShape
from gateway.fleet.kv_layers import KvSizeUnknown
from gateway.fleet.kv_size import KvSize, find_shape, size_kv
from tests.gateway.fleet import kv_configs as models


@pytest.mark.parametrize(
    ("config", "per_token_bytes"),
    [
        (models.DEEPSEEK_V3, 70_272),  # 61 layers x (512 + 64) x 2 bytes, one copy for all heads
        (models.KIMI_K25, 70_272),  # the same layers, nested, with half the heads
        (models.LONGCAT_FLASH, 64_512),  # 28 x 2 attentions x 576 x 2
        (models.GLM_47_FLASH, 54_144),  # 47 x 576 x 2
        (models.DEEPSEEK_V32, 78_324),  # 61 x (576 x 2 + 128 index bytes + 4 of their scale)
        (models.GLM_5, 100_152),  # 78 x 1,284
        (models.GLM_45, 376_832),  # 2 x 92 x 8 heads x 128 x 2
        (models.QWEN3_32B, 262_144),  # 2 x 64 x 8 x 128 x 2
        (models.LLAMA3_8B, 131_072),  # 2 x 32 x 8 x (4096 / 32) x 2
        (models.LLAMA3_70B, 327_680),  # 2 x 80 x 8 x (8192 / 64) x 2
        (models.LLAMA2_7B, 524_288),  # every head has KV: 2 x 32 x 32 x 128 x 2
        (models.QWEN25_VL_7B, 57_344),  # the text model's: 2 x 28 x 4 x 128 x 2
        (models.PHI3_MINI_128K, 393_216),  # the window is longer than the context: 2 x 32 x 32 x 96 x 2
        (models.FALCON_7B, 8_192),  # one head: 2 x 32 x 1 x 64 x 2
        (models.FALCON_40B, 122_880),  # 2 x 60 x 8 x 64 x 2
        (models.CHATGLM3, 28_672),  # 2 x 28 x 2 groups x 128 x 2
        (models.DBRX, 163_840),  # 2 x 40 x 8 x 128 x 2
    ],
)
def test_models_whose_layers_keep_all_tokens(config: dict[str, Any], per_token_bytes: int) -> None:
    """MHA, GQA, MQA and latent attention: all of the KV grows with the tokens."""
    assert size_kv(config) == KvSize(per_token_bytes, 0, per_token_bytes)


@pytest.mark.parametrize(
    ("config", "size"),
    [
        # A layer has 2 x 8 heads x 64 x 2 = 2,048 bytes a token; 18 are full, 18 keep 128 tokens.
        (models.GPT_OSS_120B, KvSize(18 * 2048, 18 * 2048 * 128, 36 * 2048)),
        # 2 x 16 x 128 x 2 = 8,192; layers 6, 12 .. 60 of 62 are full.
        (models.GEMMA3_27B, KvSize(10 * 8192, 52 * 8192 * 1024, 62 * 8192)),
        # 4 heads of 256 by the family's defaults: 4,096; layers 6 .. 30 of 34 are full.
        (models.GEMMA3_4B, KvSize(5 * 4096, 29 * 4096 * 1024, 34 * 4096)),
        # 2 x 2 x 256 x 2 = 2,048; 20 layers have KV of their own, of which each fifth is full.
        (models.GEMMA3N, KvSize(4 * 2048, 16 * 2048 * 512, 20 * 2048)),
        # 4,096; each fourth layer of 64 is full.
        (models.EXAONE4_32B, KvSize(16 * 4096, 48 * 4096 * 4096, 64 * 4096)),
        # Chunks of 8,192 tokens in three layers of four.
        (models.LLAMA4_SCOUT, KvSize(12 * 4096, 36 * 4096 * 8192, 48 * 4096)),
        # The last 16 layers of 64 have windows.
        (models.QWEN2_WINDOWED, KvSize(48 * 4096, 16 * 4096 * 4096, 64 * 4096)),
        # All 32 layers have windows: no token is kept for good.
        (models.MISTRAL_7B, KvSize(0, 32 * 4096 * 4096, 131_072)),
    ],
)
def test_windows_cost_a_sequence_and_not_a_token(config: dict[str, Any], size: KvSize) -> None:
    """Sliding windows and chunked attention: full windows are a constant."""
    assert size_kv(config) == size


@pytest.mark.parametrize(
    ("config", "per_token_bytes", "fixed_bytes"),
    [
        # 12 full layers of 2 x 2 x 256 x 2; 36 with 3 x (2 x 16 x 128 + 32 x 128) and 32 x 128 x 128 elements.
        (models.QWEN3_NEXT_80B, 12 * 2048, 36 * (24_576 + 524_288) * 2),
        # 7 latent layers; 20 with three convolutions of 3 x 4,096 and 32 x 128 x 128.
        (models.KIMI_LINEAR, 7 * 1152, 20 * (36_864 + 524_288) * 2),
        # 4 full layers of 2 x 8 x 128 x 2; 28 with 8,192 x 3 and 8,192 x 16.
        (models.JAMBA, 4 * 4096, 28 * (24_576 + 131_072) * 2),
        # 4 stars; 24 M with (8,192 + 2 x 8 x 128) x 3 and 8,192 x 128.
        (models.NEMOTRON_H_8B, 4 * 4096, 24 * (30_720 + 1_048_576) * 2),
        # No layer keeps tokens: 64 with (5,120 + 2 x 128) x 3 and 5,120 x 128.
        (models.MAMBA2, 0, 64 * (16_128 + 655_360) * 2),
        # 10 full layers of 80; 70 with 64 heads of 128 x 128.
        (models.MINIMAX_01, 10 * 4096, 70 * 64 * 128 * 128 * 2),
        # 6 full layers of 2 x 8 x 64 x 2; 10 with two inputs of 2,048.
        (models.LFM2, 6 * 2048, 10 * 2 * 2048 * 2),
    ],
)
def test_states_cost_a_sequence_and_not_a_token(config: dict[str, Any], per_token_bytes: int, fixed_bytes: int) -> None:
    """Linear attention, Mamba and short convolutions: a state is as large as it was at the start."""
    assert size_kv(config) == KvSize(per_token_bytes, fixed_bytes, per_token_bytes)


def test_parallel_heads_have_both() -> None:
    """Falcon-H1's layers keep KV of all tokens beside a state."""
    config = {**models.JAMBA, "model_type": "falcon_h1", "attn_layer_period": None, "mamba_n_heads": 128}
    assert size_kv(config) == KvSize(32 * 4096, 32 * ((8192 + 2 * 16) * 3 + 8192 * 16) * 2, 32 * 4096)


@pytest.mark.parametrize(
    ("config", "dtype", "per_token_bytes"),
    [
        (models.QWEN3_32B, "auto", 262_144),
        (models.QWEN3_32B, "float32", 524_288),
        (models.QWEN3_32B, "fp8", 131_072),
        (models.DEEPSEEK_V3, "fp8", 35_136),  # 61 x 576
        (models.DEEPSEEK_V32, "fp8", 48_068),  # 61 x (512 + 4 scales of 4 + 64 x 2 + 132)
        ({**models.QWEN3_32B, "torch_dtype": "float32"}, "auto", 524_288),
        ({**models.QWEN3_32B, "torch_dtype": None, "dtype": "torch.float16"}, "auto", 262_144),
        ({**models.QWEN3_32B, "torch_dtype": None}, "auto", 262_144),
    ],
)
def test_element_type(config: dict[str, Any], dtype: str, per_token_bytes: int) -> None:
    """The setting wins over the model's own, which is bfloat16 where it says nothing."""
    assert size_kv(config, dtype).per_token_bytes == per_token_bytes


def test_states_keep_the_model_s_type() -> None:
    """fp8 is for KV alone; a state of another type says so itself."""
    by_model = size_kv(models.QWEN3_NEXT_80B).fixed_bytes
    assert size_kv(models.QWEN3_NEXT_80B, "fp8").fixed_bytes == by_model
    precise = {**models.QWEN3_NEXT_80B, "mamba_ssm_dtype": "float32"}
    assert size_kv(precise).fixed_bytes == by_model + 36 * 524_288 * 2


def test_indexers_that_layers_share() -> None:
    """A layer that reuses another's index has no index of its own."""
    config = {**models.GLM_5, "indexer_types": ["full", "shared"] * 39}
    assert size_kv(config).per_token_bytes == 78 * 1152 + 39 * 132


def test_what_plans_count() -> None:
    """Where nothing grows for good, a token counts as it does inside the windows."""
    assert size_kv(models.GPT_OSS_120B).planned_bytes == 36_864
    assert size_kv(models.MISTRAL_7B).planned_bytes == 131_072


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"num_hidden_layers": None}, "num_hidden_layers is missing"),
        ({"num_attention_heads": None, "num_key_value_heads": None}, "num_attention_heads is missing"),
        ({"num_key_value_heads": [8, 4]}, "num_key_value_heads is .8, 4."),
        ({"num_key_value_heads": True}, "num_key_value_heads is True"),
        ({"head_dim": None, "hidden_size": 5121}, "head_dim is missing"),
        ({"head_dim": None, "hidden_size": None}, "hidden_size is missing"),
        ({"layer_types": ["compressed_sparse_attention"] * 64}, "layer_types has 'compressed_sparse_attention'"),
        ({"layer_types": ["full_attention"] * 63}, "layer_types has 63 layers of 64"),
        ({"layer_types": ["linear_attention"] * 64}, "state"),
        ({"hybrid_override_pattern": "M-X"}, "hybrid_override_pattern has 'X'"),
        ({"attn_layer_indices": [64]}, "attn_layer_indices"),
        ({"mamba_d_state": 16}, "mamba_d_state is set"),
        ({"torch_dtype": "float4"}, "torch_dtype is 'float4'"),
        ({"compress_ratios": [4, 128]}, "compress_ratios is set"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder is set"),
        ({"kv_lora_rank": 512}, "qk_rope_head_dim is missing"),
        ({"kv_lora_rank": 256, "model_type": "minicpm3"}, "kv_lora_rank is set"),
        ({"kv_lora_rank": 512, "qk_rope_head_dim": 64, "index_head_dim": 128, "index_topk_freq": 4}, "index_topk_freq"),
    ],
)
def test_unknown_shapes_are_refused(change: dict[str, Any], key: str) -> None:
    """What is not understood is never guessed; the message names the key."""
    with pytest.raises(KvSizeUnknown, match=key):
        size_kv({**models.QWEN3_32B, **change})


KEYS = sorted(
    {key for config in vars(models).values() if isinstance(config, dict) for key in config} | {"index_topk_freq"}
)
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-1, 200), st.floats(0, 2), st.sampled_from(["mamba", "LG", ""])
)
VALUES = st.one_of(
    SCALARS,
    st.lists(st.one_of(SCALARS, st.just([0])), max_size=4),
    st.dictionaries(st.sampled_from(["num_heads", "kv_n_heads", "full_attn_layers", "0"]), SCALARS, max_size=3),
)


@given(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=5))
def test_any_config_is_computed_or_refused(change: dict[str, Any]) -> None:
    """Values of the wrong kind are refused like any other shape that is not known."""
    with contextlib.suppress(KvSizeUnknown):
        size_kv({"num_hidden_layers": 4, "num_attention_heads": 4, "hidden_size": 64, **change})


@pytest.mark.parametrize(
    ("config", "dtype", "shape"),
    [
        (models.QWEN3_32B, "auto", KvShape("packed", 64, 8, 256)),
        (models.QWEN3_32B, "fp8", KvShape("packed", 64, 8, 128)),
        (models.LLAMA3_70B, "auto", KvShape("packed", 80, 8, 256)),
        (models.FALCON_7B, "auto", KvShape("packed", 32, 1, 128)),
        (models.QWEN25_VL_7B, "auto", KvShape("packed", 28, 4, 256)),
        (models.GEMMA3_27B, "auto", KvShape("packed", 62, 16, 256)),  # windows have the same heads
        (models.DEEPSEEK_V3, "auto", KvShape("latent", 1, 1, 70_272)),
    ],
)
def test_how_kv_is_cut(config: dict[str, Any], dtype: str, shape: KvShape) -> None:
    """Layers, KV heads and the bytes of a head's keys; a latent is in one piece."""
    found = find_shape(config, dtype)
    assert found == shape
    size = size_kv(config, dtype)
    assert found.token_bytes == size.unwindowed_bytes


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (models.QWEN3_NEXT_80B, "some layers keep states"),
        ({**models.QWEN3_32B, "v_head_dim": 64}, "v_head_dim"),
        (models.LLAMA3_8B | {"compress_ratios": [4]}, "compress"),
        (models.LLAMA3_8B | {"per_layer_config": {"0": {"num_key_value_heads": 4}}}, "different heads"),
    ],
)
def test_kv_that_is_not_cut_evenly_is_named(config: dict[str, Any], why: str) -> None:
    """States, layers with heads of their own, and values of another size have no shape."""
    with pytest.raises(KvSizeUnknown, match=why):
        find_shape(config)
