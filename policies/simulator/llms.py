"""Language models by what they cost to run: parameters, KV of a token, and work of attention."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Llm:
    """One model as it is served. Attention is counted per pair of a query token and a key token, over all layers."""

    name: str
    params: float
    active_params: float
    weight_bytes: float
    """Of one parameter."""
    kv_bytes: int
    """KV that one token keeps."""
    kv_read_bytes: float
    """Bytes that a decoded token reads for each token of its context; with sparse attention less than ``kv_bytes``."""
    prefill_pair_flops: float
    decode_pair_flops: float
    experts: int
    """Experts of a layer; 1: a dense model."""
    experts_per_token: int
    tokens_per_step: float
    """Tokens that one decode step yields, by speculation."""
    source: str

    @property
    def padding_tokens(self) -> float:
        """Tokens' worth of compute that a step loses: each expert's share is filled up to whole tiles of the GEMM."""
        return 0.0 if self.experts == 1 else TILE_ROWS / 2 * self.experts / self.experts_per_token


TILE_ROWS = 128
"""Rows of a tile of grouped GEMMs (DeepGEMM's ``BLOCK_M``; half of one is lost for each expert on average)."""
MTP_TOKENS = 1.7
"""Tokens a step with one speculated token accepted 70 to 85 % of the time (DeepSeek-V3 report, section 5.4.3)."""


def gqa_pair_flops(layers: int, heads: int, head_dim: int) -> float:
    """Scores and values: two products of ``head_dim`` for each head, two operations each."""
    return 4.0 * layers * heads * head_dim


def gqa_kv_bytes(layers: int, kv_heads: int, head_dim: int, element_bytes: int) -> int:
    """Key and value of each head."""
    return 2 * layers * kv_heads * head_dim * element_bytes


def mla_pair_flops(layers: int, heads: int, score_dim: int, value_dim: int) -> float:
    """The same with keys wider than values."""
    return 2.0 * layers * heads * (score_dim + value_dim)


def _gqa(
    name: str, params: float, active: float, shape: tuple[int, int, int, int], moe: tuple[int, int], source: str
) -> Llm:
    layers, heads, kv_heads, head_dim = shape
    pair, kv_bytes = gqa_pair_flops(layers, heads, head_dim), gqa_kv_bytes(layers, kv_heads, head_dim, 1)
    return Llm(name, params, active, 1.0, kv_bytes, kv_bytes, pair, pair, *moe, tokens_per_step=1.0, source=source)


_V3_PREFILL, _V3_DECODE = mla_pair_flops(61, 128, 192, 128), mla_pair_flops(61, 128, 576, 512)
_INDEX_PAIR = 61 * 64 * 128 * 2 / 2
"""The lightning indexer of V3.2: 64 heads of 128, at 8 bits, where the rest of attention runs at 16."""
_V32_CONTEXT, _V32_KEPT = 65_536, 2048

_V4_ENTRY = 512 * 2
"""Bytes of one compressed entry, key and value in one."""
_V4_READ_BYTES = 30 * (128 / 4 + _V4_ENTRY * 1024 / _V32_CONTEXT) + 31 * _V4_ENTRY / 128
_V4_PAIR = 30 * 64 * 128 * 2 / 2 / 4 + 4 * 128 * 512 * (30 * 1024 / _V32_CONTEXT + 31 / 128)

LLMS = {
    llm.name: llm
    for llm in (
        Llm(
            "deepseek-v3",
            671e9,
            37e9,
            1,
            61 * 576 * 2,
            61 * 576 * 2,
            _V3_PREFILL,
            _V3_DECODE,
            256,
            8,
            MTP_TOKENS,
            "DeepSeek-V3 config: 61 layers, MLA 512 + 64, 128 heads; KV in bfloat16",
        ),
        Llm(
            "deepseek-v3.2",
            671e9,
            37e9,
            1,
            61 * (656 + 132),
            61 * (132 + 656 * _V32_KEPT / _V32_CONTEXT),
            _INDEX_PAIR + _V3_DECODE * _V32_KEPT / _V32_CONTEXT,
            _INDEX_PAIR + _V3_DECODE * _V32_KEPT / _V32_CONTEXT,
            256,
            8,
            MTP_TOKENS,
            "DeepSeek-V3.2: FlashMLA's 656 bytes of fp8 KV and 132 of index keys a layer; 2,048 keys kept of 64K",
        ),
        Llm(
            "deepseek-v4-pro",
            1.6e12,
            49e9,
            0.5,
            9_900,
            _V4_READ_BYTES,
            _V4_PAIR,
            _V4_PAIR,
            384,
            6,
            MTP_TOKENS,
            "DeepSeek-V4-Pro: 30 layers CSA (4x, 1,024 kept), 31 HCA (128x), 128 heads of 512; bfloat16 KV; FP4",
        ),
        _gqa("qwen3-235b", 235e9, 22e9, (94, 64, 4, 128), (128, 8), "Qwen3-235B-A22B config; KV at 8 bits"),
        _gqa("llama-70b", 70e9, 70e9, (80, 64, 8, 128), (1, 1), "Llama-3.3-70B config; KV at 8 bits"),
        _gqa("qwen3-32b", 32.8e9, 32.8e9, (64, 64, 8, 128), (1, 1), "Qwen3-32B config; KV at 8 bits"),
        _gqa(
            "gpt-oss-120b",
            117e9,
            5.1e9,
            (18, 64, 8, 64),
            (128, 4),
            "gpt-oss-120b config: the 18 of 36 layers without a sliding window; KV at 8 bits",
        ),
        Llm(
            "minimax-m2",
            230e9,
            10e9,
            1,
            gqa_kv_bytes(62, 8, 128, 1),
            gqa_kv_bytes(62, 8, 128, 1),
            gqa_pair_flops(62, 48, 128),
            gqa_pair_flops(62, 48, 128),
            256,
            8,
            MTP_TOKENS,
            "MiniMax-M2 config",
        ),
        Llm(
            "qwen3.5-397b",
            397e9,
            17e9,
            1,
            gqa_kv_bytes(15, 2, 256, 2),
            gqa_kv_bytes(15, 2, 256, 2),
            gqa_pair_flops(15, 32, 256),
            gqa_pair_flops(15, 32, 256),
            512,
            10,
            MTP_TOKENS,
            "Qwen3.5-397B-A17B: 15 of 60 layers with attention, the others linear; KV in bfloat16",
        ),
    )
}
