"""Model directories with random weights, one for each family whose KV is laid out in a way of its own.

Their weights are large enough that what a model says follows from all of its context.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM, Gemma3ForCausalLM, Gemma3TextConfig, PreTrainedModel

from backends.engines.reference.demo_model import MODEL_DIR

VOCABULARY = 1536
CONTEXT_TOKENS = 16384
WEIGHT_STD = 0.1
WINDOW_TOKENS = 128
LORA_RANK = 8
YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 4096,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
"""As DeepSeek has it. vLLM's CPU kernel for plain rotary embeddings is wrong for MLA: prefill and decode differ."""
SEED = 7
COMMON = {
    "vocab_size": VOCABULARY,
    "max_position_embeddings": CONTEXT_TOKENS,
    "initializer_range": WEIGHT_STD,
    "bos_token_id": None,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def make_mla(folder: Path) -> Path:
    """DeepSeek V3 without experts. vLLM's CPU kernel knows DeepSeek's own latent only: 512 and 64."""
    config = DeepseekV3Config(
        **COMMON,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=3,
        first_k_dense_replace=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        q_lora_rank=None,
        kv_lora_rank=512,
        qk_rope_head_dim=64,
        qk_nope_head_dim=32,
        v_head_dim=32,
        n_routed_experts=4,
        num_nextn_predict_layers=0,
        tie_word_embeddings=False,
        rope_parameters=YARN,
    )
    torch.manual_seed(SEED)
    return _save(DeepseekV3ForCausalLM(config), folder)


def make_hybrid(folder: Path) -> Path:
    """Gemma 3: layers with a window, and layers that keep all tokens."""
    config = Gemma3TextConfig(
        **COMMON,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        query_pre_attn_scalar=64,
        sliding_window=WINDOW_TOKENS,
        layer_types=["sliding_attention", "full_attention"] * 2,
        tie_word_embeddings=True,
    )
    torch.manual_seed(SEED)
    model = Gemma3ForCausalLM(config)
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(0.1)  # else it says its last token again, for ever
    return _save(model, folder)


def make_adapter(folder: Path) -> Path:
    """A LoRA adapter of the demo model."""
    folder.mkdir()
    base = load_file(MODEL_DIR / "model.safetensors")
    random = torch.Generator().manual_seed(SEED)
    weights = {}
    for name, weight in base.items():
        if name.endswith(("q_proj.weight", "v_proj.weight")):
            stem = f"base_model.model.{name.removesuffix('.weight')}"
            outward, inward = weight.shape
            weights[f"{stem}.lora_A.weight"] = torch.randn(LORA_RANK, inward, generator=random) * WEIGHT_STD
            weights[f"{stem}.lora_B.weight"] = torch.randn(outward, LORA_RANK, generator=random) * WEIGHT_STD
    save_file(weights, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": LORA_RANK, "lora_alpha": 2 * LORA_RANK}
    settings |= {"target_modules": ["q_proj", "v_proj"], "bias": "none", "base_model_name_or_path": str(MODEL_DIR)}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return folder


def _save(model: PreTrainedModel, folder: Path) -> Path:
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(MODEL_DIR / name, folder / name)
    return folder
