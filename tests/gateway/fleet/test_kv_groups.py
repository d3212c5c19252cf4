"""Object groups as they follow from a config.json, against those that LMCache 0.5.6 makes of the same layers."""

from typing import Any

import pytest
import torch
from lmcache.lmcache_native import EngineKVFormat
from lmcache.v1.kv_layer_groups import KVLayerGroupsManager
from lmcache.v1.multiprocess.group_view import EngineGroupInfo

from gateway.fleet.kv_layers import KvSizeUnknown
from gateway.fleet.kv_size import find_groups
from tests.gateway.fleet import kv_configs as models

CHUNK_TOKENS, BLOCK_TOKENS = 256, 16


def windows_of_lmcache(layers: str, window_tokens: int) -> list[int]:
    """Windows in chunks, -1 for all, of LMCache's object groups. A layer is A(ll), W(indow) or S(tate)."""
    sizes = {"A": -1, "W": window_tokens, "S": BLOCK_TOKENS}
    infos = []
    for engine_group, kind in enumerate(dict.fromkeys(layers)):
        numbers = tuple(number for number, layer in enumerate(layers) if layer == kind)
        infos.append(EngineGroupInfo(engine_group, numbers, BLOCK_TOKENS, sizes[kind], recurrent_state=kind == "S"))
    caches = [torch.zeros(2, 1, BLOCK_TOKENS, 4) for _ in layers]
    formats = [EngineKVFormat.NL_X_NB_NH_BS_CS] * len(layers)
    manager = KVLayerGroupsManager(caches, formats, infos, CHUNK_TOKENS, separate_object_groups=True)
    return list(manager.get_attn_desc().num_chunks_in_sw)


@pytest.mark.parametrize(
    ("config", "layers", "groups"),
    [
        (models.QWEN3_32B, "A" * 64, (None,)),
        (models.DEEPSEEK_V3, "A" * 61, (None,)),
        (models.GPT_OSS_120B, "WA" * 18, (128, None)),
        (models.GEMMA3_27B, "WWWWWA" * 10 + "WW", (1024, None)),
        (models.GPT_OSS_120B | {"sliding_window": 1000}, "WA" * 18, (1000, None)),
        (models.QWEN3_NEXT_80B, "SSSA" * 12, (1, None)),
        (models.LLAMA4_SCOUT, "A" * 48, (None,)),
    ],
)
def test_groups_are_lmcache_s(config: dict[str, Any], layers: str, groups: tuple[int | None, ...]) -> None:
    """Numbers and windows are LMCache's: by the first layer of each kind, in whole chunks."""
    assert find_groups(config) == groups
    window_tokens = max((tokens for tokens in groups if tokens), default=0)
    windows = [-1 if tokens is None else -(-tokens // CHUNK_TOKENS) for tokens in groups]
    assert windows == windows_of_lmcache(layers, window_tokens)


def test_groups_that_do_not_follow_are_refused() -> None:
    """Heads and a state in one layer are two groups in an order that config.json does not tell."""
    with pytest.raises(KvSizeUnknown, match="side by side"):
        find_groups({"model_type": "falcon_h1", "num_hidden_layers": 2, "hidden_size": 8, "num_attention_heads": 2})
