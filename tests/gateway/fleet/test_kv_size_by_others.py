"""Computed KV sizes against what others' code keeps: transformers' caches of tiny models, LMCache's chunks."""

import math
from functools import partial
from typing import Any

import msgspec
import pytest
import torch
from lmcache.v1.metadata import LMCacheMetadata
from transformers import AutoConfig, AutoModelForCausalLM

from backends.engines.reference.demo_model import MODEL_DIR
from gateway.fleet.kv_size import size_kv
from tests.contract.prompts import KV_BYTES_PER_TOKEN
from tests.gateway.fleet import kv_configs as models

pytestmark = pytest.mark.timeout(120)

WINDOW = 8
TINY: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
}
EXPERTS = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16}
MAMBA2 = {"mamba_n_heads": 4, "mamba_d_head": 32, "mamba_d_state": 8}
FAMILIES: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1], **MAMBA2},
    "cohere2": {"sliding_window": WINDOW},
    "falcon": {"multi_query": True, "new_decoder_architecture": False},
    "gemma2": {"sliding_window": WINDOW, "head_dim": 24},
    "gemma3_text": {"sliding_window": WINDOW, "head_dim": 24, "num_hidden_layers": 7},
    "gemma4_text": {
        "sliding_window": WINDOW,
        "head_dim": 24,
        "global_head_dim": 48,
        "num_hidden_layers": 6,
        "vocab_size_per_layer_input": 64,
        "hidden_size_per_layer_input": 8,
    },
    "gpt_bigcode": {},
    "gpt_oss": {"sliding_window": WINDOW, "head_dim": 24, "num_local_experts": 2, "num_experts_per_tok": 1},
    "jamba": {"num_hidden_layers": 8, "num_experts": 2, "use_mamba_kernels": False},
    "llama": {},
    "llama4_text": {
        "attention_chunk_size": WINDOW,
        "head_dim": 24,
        "num_local_experts": 2,
        "intermediate_size_mlp": 64,
    },
    "mamba2": {"num_heads": 4, "head_dim": 32, "state_size": 8, "n_groups": 1},
    "mistral": {"sliding_window": WINDOW},
    "olmo3": {"sliding_window": WINDOW},
    "phi3": {"sliding_window": WINDOW},
    "qwen2": {"sliding_window": WINDOW, "use_sliding_window": True, "max_window_layers": 2},
    "qwen3": {"head_dim": 24},
    "qwen3_next": {
        "head_dim": 24,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "shared_expert_intermediate_size": 16,
        **EXPERTS,
    },
}


def held_bytes(model: Any, tokens: int) -> int:
    """Bytes that the model's cache holds after a prompt of ``tokens``."""
    with torch.inference_mode():
        cache = model(torch.ones(1, tokens, dtype=torch.long), use_cache=True).past_key_values
    found: list[Any] = [value for layer in cache.layers for value in vars(layer).values()]
    found += [value for nested in found if isinstance(nested, dict) for value in nested.values()]
    return sum(value.numel() * value.element_size() for value in found if isinstance(value, torch.Tensor))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_token_adds_what_transformers_caches_for_it(family: str) -> None:
    """Inside the windows and beyond them, from a config.json as written by hand and as transformers writes it."""
    written = {**TINY, **FAMILIES[family]}
    config = AutoConfig.for_model(family, **written)
    held = partial(held_bytes, AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval())
    beyond, inside = held(5 * WINDOW + 1) - held(5 * WINDOW), held(WINDOW - 2) - held(WINDOW - 3)
    for source in (written, config.to_dict()):
        size = size_kv({**source, "model_type": family}, "float32")
        assert (size.per_token_bytes, size.unwindowed_bytes) == (beyond, inside)


@pytest.mark.parametrize(
    ("config", "layers", "parts", "heads", "head_size"),
    [
        (models.DEEPSEEK_V3, 61, 1, 1, 576),
        (models.QWEN3_32B, 64, 2, 8, 128),
        (models.LLAMA3_70B, 80, 2, 8, 128),
        (models.GPT_OSS_120B, 36, 2, 8, 64),
    ],
)
def test_a_chunk_has_the_size_that_lmcache_gives_it(
    config: dict[str, Any], layers: int, parts: int, heads: int, head_size: int
) -> None:
    """LMCache without object groups keeps all layers whole, windowed ones, too."""
    shape = (layers, parts, 256, heads, head_size)
    chunk = LMCacheMetadata("m", 1, 1, 0, 0, torch.bfloat16, shape, use_mla=parts == 1)
    held = sum(
        math.prod(one) * dtype.itemsize for one, dtype in zip(chunk.get_shapes(256), chunk.get_dtypes(), strict=True)
    )
    assert held == 256 * size_kv(config).unwindowed_bytes


def test_the_recorded_store_has_the_computed_size() -> None:
    """A real LMCache server kept so many bytes of the demo model for a token (see ``tests/contract``)."""
    config = msgspec.json.decode((MODEL_DIR / "config.json").read_bytes(), type=dict[str, Any])
    assert size_kv(config, "float32").per_token_bytes == KV_BYTES_PER_TOKEN
