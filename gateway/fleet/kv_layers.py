"""What each layer of a model keeps of a sequence, from its config.json."""

from collections.abc import Mapping
from enum import Flag, auto
from typing import Any

Config = Mapping[str, Any]


class KvSizeUnknown(Exception):
    """The KV's size does not follow from config.json; the message names the key."""


class Keeps(Flag):
    """What a layer keeps. Parallel heads (Falcon-H1) keep the KV of all tokens and a state, an MLP keeps nothing."""

    NOTHING = 0
    ALL = auto()
    WINDOW = auto()
    STATE = auto()


_BY_NAME = {
    "full_attention": Keeps.ALL,
    "attention": Keeps.ALL,
    "indexed_attention": Keeps.ALL,
    "deepseek_sparse_attention": Keeps.ALL,
    "sliding_attention": Keeps.WINDOW,
    "chunked_attention": Keeps.WINDOW,
    "linear_attention": Keeps.STATE,
    "mamba": Keeps.STATE,
    "conv": Keeps.STATE,
    "recurrent": Keeps.STATE,
    "hybrid": Keeps.ALL | Keeps.STATE,
    "moe": Keeps.NOTHING,
    "mlp": Keeps.NOTHING,
}
_BY_LETTER = {"*": Keeps.ALL, "M": Keeps.STATE, "-": Keeps.NOTHING, "E": Keeps.NOTHING}
_STATES_ONLY = frozenset({"falcon_mamba", "mamba", "mamba2"})
_PARALLEL = frozenset({"falcon_h1"})
"""Families whose every layer has attention and a state side by side."""
_COUNT_KEYS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_STATE_KEYS = (
    "conv_L_cache",
    "linear_attn_alpha_factor",
    "linear_num_value_heads",
    "mamba_d_state",
    "ssm_state_size",
)
"""Keys of families in which some layers keep states."""
_WINDOW_KEYS = ("sliding_window", "attention_chunk_size", "attention_window_size")


def whole_number(config: Config, *keys: str) -> int | None:
    """The first of ``keys`` that is there; None where none is. Raises KvSizeUnknown."""
    for key in keys:
        value = config.get(key)
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise KvSizeUnknown(f"{key} is {value!r}, not a whole number above 0")
        return value
    return None


def needed_number(config: Config, *keys: str) -> int:
    """The first of ``keys`` that is there. Raises KvSizeUnknown."""
    found = whole_number(config, *keys)
    if found is None:
        raise KvSizeUnknown(f"{keys[0]} is missing")
    return found


def count_of(config: Config, key: str) -> int:
    """A number that may be 0, as it is where the key is missing. Raises KvSizeUnknown."""
    return whole_number({key: config.get(key) or None}, key) or 0


def section(config: Config, key: str) -> Config:
    """The object under ``key``; an empty one where it is not there. Raises KvSizeUnknown."""
    value = config.get(key)
    if value is not None and not isinstance(value, Mapping):
        raise KvSizeUnknown(f"{key} is {value!r}, not an object")
    return value or {}


def find_window(config: Config) -> int | None:
    """Tokens that a windowed layer keeps; None where that is all that the model can read."""
    window = whole_number(config, *_WINDOW_KEYS)
    context = whole_number(config, "max_position_embeddings")
    if window is None or (context is not None and window >= context):
        return None
    return window


def find_layers(config: Config) -> list[Keeps]:
    """What each layer keeps, in their order. Raises KvSizeUnknown."""
    pattern = config.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        layers = [_look_up(_BY_LETTER, letter, "hybrid_override_pattern") for letter in pattern]
    else:
        layers = _listed(config) or _counted(config, needed_number(config, *_COUNT_KEYS))
    shared = count_of(config, "num_kv_shared_layers")
    if shared:  # Gemma 3n: the last layers read the KV of layers before them
        layers = layers[:-shared] + [Keeps.NOTHING] * shared
    if find_window(config) is None:
        layers = [Keeps.ALL if kept is Keeps.WINDOW else kept for kept in layers]
    return layers


def _look_up(table: Mapping[Any, Keeps], word: Any, key: str) -> Keeps:
    kept = table.get(word) if isinstance(word, str | int) else None
    if kept is None:
        raise KvSizeUnknown(f"{key} has {word!r}, which is no known kind of layer")
    return kept


def _listed(config: Config) -> list[Keeps] | None:
    """Layers that the configuration names one by one. Draft layers may stand behind them."""
    for key, table in (
        ("layer_types", _BY_NAME),
        ("layers_block_type", _BY_NAME),
        ("attn_type_list", {0: Keeps.STATE, 1: Keeps.ALL}),  # MiniMax
    ):
        names = config.get(key)
        if isinstance(names, list):
            count = whole_number(config, *_COUNT_KEYS) or len(names)
            if len(names) < count:
                raise KvSizeUnknown(f"{key} has {len(names)} layers of {count}")
            return [_look_up(table, name, key) for name in names[:count]]
    return _numbered(config)


def _numbered(config: Config) -> list[Keeps] | None:
    """Layers of which those with attention are named by number; the others keep states."""
    for key, first, numbers in (
        ("linear_attn_config", 1, section(config, "linear_attn_config").get("full_attn_layers")),
        ("attn_layer_indices", 0, config.get("attn_layer_indices")),
        ("full_attn_idxs", 0, config.get("full_attn_idxs")),
    ):
        if numbers is not None:
            count = needed_number(config, *_COUNT_KEYS)
            layers = range(first, first + count)
            if not isinstance(numbers, list) or any(number not in layers for number in numbers):
                raise KvSizeUnknown(f"{key} names layers that the model does not have")
            return [Keeps.ALL if number in numbers else Keeps.STATE for number in layers]
    return None


def _counted(config: Config, count: int) -> list[Keeps]:
    """Layers that follow from a period, or that are all alike."""
    model_type = config.get("model_type")
    if model_type in _STATES_ONLY:
        return [Keeps.STATE] * count
    if model_type in _PARALLEL:
        return [Keeps.ALL | Keeps.STATE] * count
    period = whole_number(config, "attn_layer_period")
    if period is not None:
        offset = config.get("attn_layer_offset", 0)
        return [Keeps.ALL if number % period == offset else Keeps.STATE for number in range(count)]
    interval = whole_number(config, "full_attention_interval")
    if interval is not None:
        return [Keeps.STATE if (number + 1) % interval else Keeps.ALL for number in range(count)]
    found = next((key for key in _STATE_KEYS if config.get(key) is not None), None)
    if found is not None:
        raise KvSizeUnknown(f"{found} is set, but nothing says which layers keep states")
    if whole_number(config, *_WINDOW_KEYS) is None or config.get("use_sliding_window") is False:
        return [Keeps.ALL] * count
    if config.get("use_sliding_window") is True:  # Qwen2: the first layers see everything
        whole = min(count, count_of(config, "max_window_layers"))
        return [Keeps.ALL] * whole + [Keeps.WINDOW] * (count - whole)
    return _alternating(config, count)


def _alternating(config: Config, count: int) -> list[Keeps]:
    """Windows in all layers but each n-th; in all where there is no n. EXAONE writes a period as letters."""
    pattern = config.get("sliding_window_pattern")
    if isinstance(pattern, str):
        letters = {"L": Keeps.WINDOW, "G": Keeps.ALL}
        layers = [
            _look_up(letters, pattern[number % len(pattern)], "sliding_window_pattern") for number in range(count)
        ]
        return [*layers[:-1], Keeps.ALL]
    every = whole_number(config, "sliding_window_pattern", "_sliding_window_pattern")
    if every is None:
        return [Keeps.WINDOW] * count
    return [Keeps.WINDOW if (number + 1) % every else Keeps.ALL for number in range(count)]
