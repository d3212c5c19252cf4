"""How the caches of engines are followed, as settings and engines tell it."""

import logging
from pathlib import Path

import msgspec
import pytest

from backends.kv.subscriber import EventSource
from backends.types import Capabilities, KvShape
from gateway.config.fleet_settings import BadSettings, EngineSettings, LinkSettings, ModelSettings
from gateway.fleet.build import ASSUMED_BLOCK_TOKENS, build_cache_spec, build_instance, find_kv_shape
from gateway.fleet.pools import Instance
from gateway.index.types import CacheSpec

TWO = Capabilities(
    ("demo",), 4096, 32, True, "boot", (("tcp://e:5557", "tcp://e:6557"), ("tcp://e:5558", None)), 2, first_rank=4
)


def settings_of(**fields: str | int | None) -> EngineSettings:
    """One engine's settings."""
    return EngineSettings("md1", "MD", "demo", "b", "http://127.0.0.1:9", **fields)  # type: ignore[arg-type]


def make(settings: EngineSettings, found: Capabilities | None) -> tuple[Instance, CacheSpec]:
    """The instance, which has told what it is, and how its cache is followed."""
    instance = build_instance(settings, {})
    instance.capabilities = found
    return instance, build_cache_spec(instance, settings)


def test_sources_that_an_engine_tells_are_its_ranks() -> None:
    """Each rank has the source that the engine told, and the name that its events give it."""
    instance, spec = make(settings_of(kv_events="auto"), TWO)
    sources = (EventSource("tcp://e:5557", "tcp://e:6557"), EventSource("tcp://e:5558"))
    assert spec == CacheSpec("md1", "demo", 32, sources, 2, "boot", first_rank=4)
    assert instance.data_parallel_size == 2


@pytest.mark.parametrize(("ranks", "told"), [(None, TWO), (2, Capabilities(("demo",), None, 32, True))])
def test_one_endpoint_stands_for_the_first_rank(ranks: int | None, told: Capabilities) -> None:
    """The other ranks publish and replay at the ports that follow, however their number is known."""
    _, spec = make(settings_of(kv_events="tcp://e:7000", kv_replay="tcp://e:8000", data_parallel_size=ranks), told)
    assert spec.sources == (EventSource("tcp://e:7000", "tcp://e:8000"), EventSource("tcp://e:7001", "tcp://e:8001"))
    assert spec.dp_size == 2


def test_engine_with_one_rank_is_followed_as_ever() -> None:
    """Without ranks there is one source, or none where the settings name none."""
    found = Capabilities(("demo",), None, None, True)
    _, named = make(settings_of(kv_events="tcp://e:7000"), found)
    assert named == CacheSpec("md1", "demo", ASSUMED_BLOCK_TOKENS, (EventSource("tcp://e:7000"),))
    _, guessed = make(settings_of(), found)
    assert guessed == CacheSpec("md1", "demo", ASSUMED_BLOCK_TOKENS)
    _, unasked = make(settings_of(), None)
    assert unasked == guessed


@pytest.mark.parametrize(
    ("ranks", "told", "words"),
    [
        (None, Capabilities(("demo",), None, 32, True), "md1 tells of no KV events"),
        (3, TWO, "md1 tells of 2 sources of KV events; data_parallel_size is 3"),
    ],
)
def test_what_does_not_fit_is_said(
    caplog: pytest.LogCaptureFixture, ranks: int | None, told: Capabilities, words: str
) -> None:
    """An engine that was to tell its sources and tells none, or another number than the settings, is named."""
    with caplog.at_level(logging.WARNING):
        _, spec = make(settings_of(kv_events="auto", data_parallel_size=ranks), told)
    assert words in caplog.text
    assert spec.dp_size == (ranks or 1)


QWEN3: dict[str, object] = {
    "hidden_size": 64,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "num_hidden_layers": 2,
}


def model_of(folder: Path, config: dict[str, object], **fields: object) -> ModelSettings:
    """Settings of a model whose directory has this config.json."""
    (folder / "config.json").write_bytes(msgspec.json.encode({"model_type": "qwen3", "dtype": "bfloat16"} | config))
    return msgspec.convert({"name": "m", "path": str(folder)} | fields, ModelSettings)


def link_of(source: int, dest: int | None) -> LinkSettings:
    """Settings of a link between engines of so many ranks."""
    return LinkSettings("a", "b", bridge="http://127.0.0.1:9", world_size=source, dest_world_size=dest)


def test_kv_is_regrouped_by_the_model_s_own_shape(tmp_path: Path) -> None:
    """The shape follows from config.json; a latent needs no regrouping and is not asked for it."""
    assert find_kv_shape(model_of(tmp_path, QWEN3), [link_of(4, 2)]) == KvShape("packed", 2, 4, 16)
    latent = QWEN3 | {"kv_lora_rank": 8, "qk_rope_head_dim": 8}
    assert find_kv_shape(model_of(tmp_path, latent), [link_of(8, 1)]) == KvShape("latent", 1, 1, 2 * 16 * 2)


@pytest.mark.parametrize(
    ("config", "fields", "ranks", "why"),
    [
        (QWEN3, {}, (3, 1), "a->b.*dest_world_size: model m: 4 KV heads cannot be cut evenly among 3 ranks"),
        (QWEN3 | {"v_head_dim": 4}, {}, (2, 1), "cannot be regrouped: v_head_dim is set"),
        (QWEN3, {"kv_bytes_per_token": 999}, (2, 1), "kv_bytes_per_token is 999, and config.json makes it 256"),
    ],
)
def test_kv_that_cannot_be_regrouped_stops_the_start(
    tmp_path: Path, config: dict[str, object], fields: dict[str, object], ranks: tuple[int, int], why: str
) -> None:
    """A link that regroups names the model whose KV cannot be, and why; other links take that model as it is."""
    model = model_of(tmp_path, config, **fields)
    with pytest.raises(BadSettings, match=why):
        find_kv_shape(model, [link_of(*ranks)])
    find_kv_shape(model, [link_of(2, None), link_of(2, 2)])
