"""How many bytes of KV a model makes, computed from its config.json as vLLM lays KV out.

A token adds to the layers that keep all tokens. Windowed layers and states cost a sequence the same however long it is:
that is ``fixed_bytes``. Numbers are those of the whole model, whatever the number of tensor-parallel ranks.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from backends.types import KvShape
from gateway.fleet.kv_layers import (
    Config,
    Keeps,
    KvSizeUnknown,
    find_layers,
    find_window,
    needed_number,
    section,
    whole_number,
)

ELEMENT_BYTES: Mapping[str, int] = MappingProxyType({"float32": 4, "bfloat16": 2, "float16": 2, "fp8": 1})

_NESTED = ("text_config", "llm_config", "language_config", "thinker_config")
"""Where multimodal models keep the language model's configuration."""
_WINDOW_IF_TOLD = (
    "qwen2",
    "qwen2_moe",
    "qwen2_vl",
    "qwen2_vl_text",
    "qwen2_5_vl",
    "qwen2_5_vl_text",
    "qwen3",
    "qwen3_moe",
)
_FAMILIES: Mapping[str, Config] = MappingProxyType(
    {
        "cohere2": {"sliding_window": 4096, "sliding_window_pattern": 4},
        "exaone4": {"sliding_window_pattern": 4},
        "falcon": {"multi_query": True},
        "gemma": {"head_dim": 256},
        "gemma2": {"head_dim": 256, "sliding_window": 4096, "sliding_window_pattern": 2},
        "gemma3_text": {
            "num_hidden_layers": 26,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "sliding_window": 4096,
            "sliding_window_pattern": 6,
        },
        "gemma4_text": {"head_dim": 256, "global_head_dim": 512, "sliding_window": 512, "sliding_window_pattern": 6},
        "gpt_bigcode": {"multi_query": True},
        "gpt_oss": {"head_dim": 64, "sliding_window": 128, "sliding_window_pattern": 2},
        "jamba": {"attn_layer_period": 8, "attn_layer_offset": 4, "mamba_d_state": 16, "mamba_d_conv": 4},
        "llama4_text": {"head_dim": 128, "attention_chunk_size": 8192, "sliding_window_pattern": 4},
        "olmo3": {"sliding_window": 4096, "sliding_window_pattern": 4},
        **{family: {"use_sliding_window": False} for family in _WINDOW_IF_TOLD},
        "qwen3_5_moe_text": {"full_attention_interval": 4},
        "qwen3_5_text": {"full_attention_interval": 4},
        "qwen3_next": {"full_attention_interval": 4},
    }
)
"""What a family's config.json may leave out, as transformers fills it in."""
_NOT_COMPUTED: Mapping[str, str] = MappingProxyType(
    {
        "compress_ratios": "layers compress their KV",
        "hybrid_layer_pattern": "windowed layers have heads of their own",
        "attention_other_setting": "windowed layers have heads of their own",
        "block_configs": "each layer has heads of its own",
        "swa_num_key_value_heads": "windowed layers have heads of their own",
        "is_encoder_decoder": "decoders of encoders keep cross attention",
    }
)
_NO_LATENT = frozenset({"minicpm3"})
"""Families that have ``kv_lora_rank``, but whose KV vLLM keeps as heads of another size."""
_TWO_ATTENTIONS_A_LAYER = frozenset({"longcat_flash"})
_INDEX_GROUP = 128
"""Elements of the sparse indexer's keys (one byte each) that share a scale of four bytes."""
_FP8_SPARSE_SCALES = 4
"""Scales of a sparse latent in fp8, four bytes each; its rotary part stays in two bytes an element."""


@dataclass(frozen=True, slots=True)
class KvSize:
    """KV of a model. ``unwindowed_bytes``: what a token adds where windowed layers are kept whole, too, as LMCache does
    without ``--separate-object-groups``."""

    per_token_bytes: int
    fixed_bytes: int
    unwindowed_bytes: int

    @property
    def planned_bytes(self) -> int:
        """What plans count for a token: without a layer that keeps all tokens, what it costs inside the windows."""
        return self.per_token_bytes or self.unwindowed_bytes


def size_kv(config: Config, kv_dtype: str = "auto") -> KvSize:
    """Compute the size from a parsed config.json. Raises KvSizeUnknown.

    ``kv_dtype`` is one of ELEMENT_BYTES, or auto: the one that the model is written in, bfloat16 where it names none.
    """
    text, written = _read(config)
    dtype = written if kv_dtype == "auto" else kv_dtype
    per_token = window_bytes = states = 0
    for layer, kept in _attentions(text):
        if Keeps.ALL in kept:
            per_token += _layer_bytes(layer, dtype, is_windowed=False)
        elif Keeps.WINDOW in kept:
            window_bytes += _layer_bytes(layer, dtype, is_windowed=True)
        states += Keeps.STATE in kept
    per_token += _index_bytes(text)
    fixed = window_bytes * (find_window(text) or 0)
    fixed += states * _state_bytes(text, ELEMENT_BYTES[written]) if states else 0
    return KvSize(per_token, fixed, per_token + window_bytes)


def find_shape(config: Config, kv_dtype: str = "auto") -> KvShape:
    """Say how a model's KV is cut among ranks. Raises KvSizeUnknown, also for layers that are not all alike."""
    text, written = _read(config)
    if whole_number(text, "kv_lora_rank") is not None:
        return KvShape("latent", 1, 1, size_kv(config, kv_dtype).per_token_bytes)
    shapes = []
    for layer, kept in _attentions(text):
        if Keeps.STATE in kept:
            raise KvSizeUnknown("some layers keep states")
        if kept:
            is_windowed = Keeps.WINDOW in kept
            shapes.append((_kv_heads(layer, is_windowed), _head_dim(layer, is_windowed)))
    if len(set(shapes)) != 1:
        raise KvSizeUnknown("its layers have different heads")
    heads, head_dim = shapes[0]
    if (whole_number(text, "v_head_dim") or head_dim) != head_dim:
        raise KvSizeUnknown("v_head_dim is set: keys and values have different sizes")
    return KvShape("packed", len(shapes), heads, head_dim * ELEMENT_BYTES[written if kv_dtype == "auto" else kv_dtype])


def find_groups(config: Config) -> tuple[int | None, ...]:
    """Object groups of LMCache with ``--separate-object-groups``: how many of the last tokens each needs, None: all.

    They are numbered by their first layer. A state is needed once, at the end. Raises KvSizeUnknown.
    """
    text, _ = _read(config)
    groups: dict[Keeps, int | None] = {}
    for _, kept in _attentions(text):
        if Keeps.STATE in kept and kept is not Keeps.STATE:
            raise KvSizeUnknown("layers have heads and a state side by side")
        if kept is Keeps.WINDOW and text.get("attention_chunk_size") is not None:
            kept = Keeps.ALL  # chunked attention is no sliding window to LMCache
        if kept:
            groups[kept] = {Keeps.ALL: None, Keeps.WINDOW: find_window(text), Keeps.STATE: 1}[kept]
    return tuple(groups.values())


def _read(config: Config) -> tuple[Config, str]:
    """The language model's part with what its family leaves out, and the type that the model is written in."""
    text = _find_text(config)
    for key, reason in _NOT_COMPUTED.items():
        if text.get(key):
            raise KvSizeUnknown(f"{key} is set ({reason})")
    family = str(text.get("model_type"))
    text = {**_FAMILIES.get(family, {}), **text, "model_type": family}
    return text, _written_dtype(text, config)


def _attentions(text: Config) -> Iterator[tuple[Config, Keeps]]:
    """Every layer's configuration and what it keeps; a layer with two attentions twice."""
    changes = section(text, "per_layer_config")
    each = 2 if text.get("model_type") in _TWO_ATTENTIONS_A_LAYER else 1
    for number, kept in enumerate(find_layers(text)):
        for _ in range(each):
            yield {**text, **section(changes, str(number))}, kept


def _find_text(config: Config) -> Config:
    for key in _NESTED:
        nested = config.get(key)
        if isinstance(nested, Mapping):
            return _find_text(nested)
    return config


def _written_dtype(*places: Config) -> str:
    for place in places:
        for key in ("dtype", "torch_dtype"):
            name = place.get(key)
            if name is None:
                continue
            name = str(name).removeprefix("torch.")
            if name not in ELEMENT_BYTES:
                raise KvSizeUnknown(f"{key} is {name!r}, which is none of {', '.join(ELEMENT_BYTES)}")
            return name
    return "bfloat16"


def _layer_bytes(text: Config, dtype: str, *, is_windowed: bool) -> int:
    """Bytes that a token adds to one layer."""
    element = ELEMENT_BYTES[dtype]
    latent = whole_number(text, "kv_lora_rank")
    if latent is not None:
        if text.get("model_type") in _NO_LATENT:
            raise KvSizeUnknown(f"kv_lora_rank is set, but {text['model_type']} does not keep it")
        # Multi-head latent attention: one vector, which all heads share and of which values are made, too.
        rotary = needed_number(text, "qk_rope_head_dim")
        if dtype == "fp8" and _is_sparse(text):
            return latent + 4 * _FP8_SPARSE_SCALES + 2 * rotary
        return (latent + rotary) * element
    keys = _head_dim(text, is_windowed)
    values = whole_number(text, "v_head_dim") or keys
    return _kv_heads(text, is_windowed) * (keys + values) * element


def _is_sparse(text: Config) -> bool:
    return text.get("index_head_dim") is not None and text.get("kv_lora_rank") is not None


def _index_bytes(text: Config) -> int:
    """Bytes that a token adds to the indexers of DeepSeek's sparse attention."""
    if not _is_sparse(text):
        return 0
    layers = sum(Keeps.ALL in kept for kept in find_layers(text))
    kinds = text.get("indexer_types")
    if isinstance(kinds, list):
        layers = sum(kind == "full" for kind in kinds[:layers])
    elif text.get("index_topk_pattern") or (whole_number(text, "index_topk_freq") or 1) > 1:
        raise KvSizeUnknown("index_topk_freq or index_topk_pattern is set, and indexer_types is missing")
    width = needed_number(text, "index_head_dim")
    return layers * (width + width // _INDEX_GROUP * 4)


def _query_heads(text: Config) -> int:
    return needed_number(text, "num_attention_heads", "n_head", "n_heads", "num_heads")


def _kv_heads(text: Config, is_windowed: bool) -> int:
    if text.get("multi_query") and not text.get("new_decoder_architecture"):
        return 1
    if not is_windowed and text.get("attention_k_eq_v"):  # Gemma 4
        wide = whole_number(text, "num_global_key_value_heads")
        if wide is not None:
            return wide
    grouped = whole_number(text, "num_key_value_heads", "num_kv_heads", "n_head_kv")
    if grouped is None and text.get("multi_query_attention"):  # ChatGLM
        grouped = needed_number(text, "multi_query_group_num")
    if grouped is None:  # MPT, DBRX
        grouped = whole_number(section(text, "attn_config"), "kv_n_heads")
    return grouped or _query_heads(text)


def _head_dim(text: Config, is_windowed: bool) -> int:
    names: tuple[str, ...] = ("head_dim", "attention_head_dim", "kv_channels")
    if not is_windowed and "per_layer_config" not in text:  # Gemma 4, which transformers writes out layer by layer
        names = ("global_head_dim", *names)
    given = whole_number(text, *names)
    if given is not None:
        return given
    hidden, heads = needed_number(text, "hidden_size", "n_embd", "d_model"), _query_heads(text)
    if hidden % heads:
        raise KvSizeUnknown(f"head_dim is missing, and hidden_size {hidden} is no multiple of {heads} heads")
    return hidden // heads


def _state_bytes(text: Config, element: int) -> int:
    """Bytes of one layer's state, convolution and recurrence. Raises KvSizeUnknown."""
    for keys, measure in _STATES:
        if any(text.get(key) is not None for key in keys):
            convolved, recurrent = measure(text)
            named = text.get("mamba_ssm_cache_dtype") or text.get("mamba_ssm_dtype")
            return convolved * element + recurrent * ELEMENT_BYTES.get(str(named), element)
    raise KvSizeUnknown("its linear layers' state is of no known shape (no mamba_d_state, linear_num_value_heads, ...)")


def _convolved_tokens(config: Config, *keys: str) -> int:
    """How many inputs a convolution remembers. Its width is 4 where none is given, in all families."""
    return (whole_number(config, *keys) or 4) - 1


def _delta_net(text: Config) -> tuple[int, int]:
    """Qwen3-Next: elements of the state, convolution and recurrence."""
    keys = needed_number(text, "linear_num_key_heads") * needed_number(text, "linear_key_head_dim")
    values = needed_number(text, "linear_num_value_heads") * needed_number(text, "linear_value_head_dim")
    convolved = _convolved_tokens(text, "linear_conv_kernel_dim") * (2 * keys + values)
    return convolved, values * needed_number(text, "linear_key_head_dim")


def _kimi_delta(text: Config) -> tuple[int, int]:
    linear = {**text, **section(text, "linear_attn_config")}
    heads = needed_number(linear, "linear_num_heads", "num_heads")
    size = needed_number(linear, "linear_head_dim", "head_dim")
    convolved = 3 * heads * size * _convolved_tokens(linear, "short_conv_kernel_size", "linear_conv_kernel_dim")
    return convolved, heads * size * size


def _inner_size(text: Config) -> int:
    expand = whole_number(text, "mamba_expand", "expand") or 2
    return whole_number(text, "mamba_d_ssm") or expand * needed_number(text, "hidden_size")


def _mamba2(text: Config) -> tuple[int, int]:
    heads = needed_number(text, "mamba_n_heads", "mamba_num_heads", "n_mamba_heads", "num_heads")
    state = needed_number(text, "mamba_d_state", "ssm_state_size", "state_size")
    groups = whole_number(text, "mamba_n_groups", "mamba_ngroups", "n_groups") or 1
    head = text.get("mamba_head_dim")
    inner = heads * head if isinstance(head, int) else _inner_size(text)
    convolved = (inner + 2 * groups * state) * _convolved_tokens(text, "mamba_d_conv", "conv_kernel")
    return convolved, inner * state


def _mamba1(text: Config) -> tuple[int, int]:
    inner = _inner_size(text)
    state = needed_number(text, "mamba_d_state", "state_size")
    return inner * _convolved_tokens(text, "mamba_d_conv", "conv_kernel"), inner * state


def _short_convolution(text: Config) -> tuple[int, int]:
    return needed_number(text, "hidden_size") * _convolved_tokens(text, "conv_L_cache"), 0


def _lightning(text: Config) -> tuple[int, int]:
    """MiniMax-01: no convolution; keys and values have one size."""
    size = _head_dim(text, is_windowed=False)
    return 0, _query_heads(text) * size * size


_STATES: tuple[tuple[tuple[str, ...], Callable[[Config], tuple[int, int]]], ...] = (
    (("linear_num_value_heads",), _delta_net),
    (("linear_attn_config", "linear_num_heads"), _kimi_delta),
    (("mamba_n_heads", "mamba_num_heads", "n_mamba_heads", "num_heads"), _mamba2),
    (("mamba_d_state", "state_size"), _mamba1),
    (("conv_L_cache",), _short_convolution),
    (("attn_type_list", "linear_attn_alpha_factor"), _lightning),
)
"""Which keys show what kind of state a family has, and how many elements one layer's has."""
