"""What config.json says of real models' layers and heads, as their publishers wrote it."""

from typing import Any

Config = dict[str, Any]

DEEPSEEK_V3: Config = {
    "model_type": "deepseek_v3",
    "torch_dtype": "bfloat16",
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "num_nextn_predict_layers": 1,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "max_position_embeddings": 163840,
}
DEEPSEEK_V32: Config = {**DEEPSEEK_V3, "model_type": "deepseek_v32", "index_head_dim": 128, "index_topk": 2048}
KIMI_K25: Config = {
    "model_type": "kimi_k25",
    "dtype": "bfloat16",
    "text_config": {**DEEPSEEK_V3, "model_type": "kimi_k2", "num_attention_heads": 64, "torch_dtype": None},
    "vision_config": {"num_hidden_layers": 27, "num_attention_heads": 16},
}
KIMI_LINEAR: Config = {
    "model_type": "kimi_linear",
    "dtype": "bfloat16",
    "hidden_size": 2304,
    "num_hidden_layers": 27,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "head_dim": 72,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "linear_attn_config": {
        "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
        "kda_layers": [1, 2, 3, 5, 6, 7, 9, 10, 11, 13, 14, 15, 17, 18, 19, 21, 22, 23, 25, 26],
        "head_dim": 128,
        "num_heads": 32,
        "short_conv_kernel_size": 4,
    },
}
LONGCAT_FLASH: Config = {
    "model_type": "longcat_flash",
    "torch_dtype": "bfloat16",
    "num_layers": 28,
    "num_attention_heads": 64,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
}
GLM_47_FLASH: Config = {
    **DEEPSEEK_V3,
    "model_type": "glm4_moe_lite",
    "num_hidden_layers": 47,
    "num_attention_heads": 20,
    "num_key_value_heads": 20,
}
GLM_5: Config = {**DEEPSEEK_V32, "model_type": "glm_moe_dsa", "num_hidden_layers": 78}
GLM_45: Config = {
    "model_type": "glm4_moe",
    "torch_dtype": "bfloat16",
    "hidden_size": 5120,
    "num_hidden_layers": 92,
    "num_attention_heads": 96,
    "num_key_value_heads": 8,
    "head_dim": 128,
}
QWEN3_32B: Config = {
    "model_type": "qwen3",
    "torch_dtype": "bfloat16",
    "hidden_size": 5120,
    "num_hidden_layers": 64,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_window_layers": 64,
    "sliding_window": None,
    "use_sliding_window": False,
}
LLAMA3_8B: Config = {
    "model_type": "llama",
    "torch_dtype": "bfloat16",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
}
LLAMA3_70B: Config = {**LLAMA3_8B, "hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64}
LLAMA2_7B: Config = {
    "model_type": "llama",
    "torch_dtype": "float16",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
}
LLAMA4_SCOUT: Config = {
    "model_type": "llama4",
    "torch_dtype": "bfloat16",
    "text_config": {
        "model_type": "llama4_text",
        "hidden_size": 5120,
        "num_hidden_layers": 48,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "attention_chunk_size": 8192,
        "max_position_embeddings": 10485760,
    },
}
QWEN25_VL_7B: Config = {
    "model_type": "qwen2_5_vl",
    "text_config": {
        "model_type": "qwen2_5_vl_text",
        "dtype": "bfloat16",
        "hidden_size": 3584,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "max_position_embeddings": 128000,
        "max_window_layers": 28,
        "sliding_window": 32768,
        "use_sliding_window": False,
    },
    "vision_config": {"depth": 32, "hidden_size": 1280, "num_heads": 16},
}
GPT_OSS_120B: Config = {
    "model_type": "gpt_oss",
    "hidden_size": 2880,
    "num_hidden_layers": 36,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "sliding_window": 128,
    "max_position_embeddings": 131072,
    "layer_types": ["sliding_attention", "full_attention"] * 18,
}
GEMMA3_27B: Config = {
    "model_type": "gemma3",
    "torch_dtype": "bfloat16",
    "text_config": {
        "model_type": "gemma3_text",
        "hidden_size": 5376,
        "num_hidden_layers": 62,
        "num_attention_heads": 32,
        "num_key_value_heads": 16,
        "head_dim": 128,
        "sliding_window": 1024,
    },
}
GEMMA3_4B: Config = {
    "model_type": "gemma3",
    "torch_dtype": "bfloat16",
    "text_config": {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "num_hidden_layers": 34,
        "sliding_window": 1024,
    },
}
GEMMA3N: Config = {
    "model_type": "gemma3n_text",
    "torch_dtype": "bfloat16",
    "hidden_size": 2048,
    "num_hidden_layers": 35,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "num_kv_shared_layers": 15,
    "sliding_window": 512,
    "layer_types": [
        "sliding_attention",
        "sliding_attention",
        "sliding_attention",
        "sliding_attention",
        "full_attention",
    ]
    * 7,
}
EXAONE4_32B: Config = {
    "model_type": "exaone4",
    "torch_dtype": "bfloat16",
    "hidden_size": 5120,
    "num_hidden_layers": 64,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "sliding_window": 4096,
    "sliding_window_pattern": "LLLG",
}
QWEN3_NEXT_80B: Config = {
    "model_type": "qwen3_next",
    "torch_dtype": "bfloat16",
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
}
MISTRAL_7B: Config = {
    "model_type": "mistral",
    "torch_dtype": "bfloat16",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "sliding_window": 4096,
    "max_position_embeddings": 32768,
}
PHI3_MINI_128K: Config = {
    "model_type": "phi3",
    "torch_dtype": "bfloat16",
    "hidden_size": 3072,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "sliding_window": 262144,
    "max_position_embeddings": 131072,
}
QWEN2_WINDOWED: Config = {
    **QWEN3_32B,
    "model_type": "qwen2",
    "use_sliding_window": True,
    "sliding_window": 4096,
    "max_window_layers": 48,
}
FALCON_7B: Config = {
    "model_type": "falcon",
    "torch_dtype": "bfloat16",
    "hidden_size": 4544,
    "num_hidden_layers": 32,
    "num_attention_heads": 71,
    "multi_query": True,
    "new_decoder_architecture": False,
}
FALCON_40B: Config = {
    **FALCON_7B,
    "hidden_size": 8192,
    "num_hidden_layers": 60,
    "num_attention_heads": 128,
    "num_kv_heads": 8,
    "new_decoder_architecture": True,
}
CHATGLM3: Config = {
    "model_type": "chatglm",
    "torch_dtype": "float16",
    "hidden_size": 4096,
    "num_layers": 28,
    "num_attention_heads": 32,
    "kv_channels": 128,
    "multi_query_attention": True,
    "multi_query_group_num": 2,
}
DBRX: Config = {
    "model_type": "dbrx",
    "torch_dtype": "bfloat16",
    "d_model": 6144,
    "n_heads": 48,
    "n_layers": 40,
    "attn_config": {"kv_n_heads": 8},
}
JAMBA: Config = {
    "model_type": "jamba",
    "torch_dtype": "bfloat16",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "attn_layer_period": 8,
    "attn_layer_offset": 4,
    "mamba_d_conv": 4,
    "mamba_d_state": 16,
    "mamba_expand": 2,
}
MAMBA2: Config = {
    "model_type": "mamba2",
    "torch_dtype": "bfloat16",
    "hidden_size": 2560,
    "num_hidden_layers": 64,
    "num_heads": 80,
    "head_dim": 64,
    "state_size": 128,
    "n_groups": 1,
    "conv_kernel": 4,
    "expand": 2,
}
NEMOTRON_H_8B: Config = {
    "model_type": "nemotron_h",
    "torch_dtype": "bfloat16",
    "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
    "hidden_size": 4096,
    "num_hidden_layers": 52,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "mamba_num_heads": 128,
    "mamba_head_dim": 64,
    "n_groups": 8,
    "ssm_state_size": 128,
    "conv_kernel": 4,
}
MINIMAX_01: Config = {
    "model_type": "minimax_text_01",
    "torch_dtype": "bfloat16",
    "hidden_size": 6144,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "attn_type_list": [0, 0, 0, 0, 0, 0, 0, 1] * 10,
}
LFM2: Config = {
    "model_type": "lfm2",
    "torch_dtype": "bfloat16",
    "hidden_size": 2048,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "conv_L_cache": 3,
    "full_attn_idxs": [2, 5, 8, 10, 12, 14],
}
