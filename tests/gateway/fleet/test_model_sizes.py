"""What models are by their settings: the KV's size, given or computed."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from gateway.config.fleet_settings import BadSettings, ModelSettings
from gateway.config.settings import parse_settings
from gateway.fleet.build import find_kv_bytes, links_of
from tests.gateway.fleet import kv_configs as models


def model(directory: Path, config: dict[str, Any] | None, **fields: Any) -> ModelSettings:
    """A model of the settings, whose directory has a config.json if there is a ``config``."""
    if config is not None:
        (directory / "config.json").write_text(json.dumps(config))
    entry = {"name": "m", "path": str(directory), **fields}
    engine = {"id": "e", "role": "MD", "model": "m", "region": "a", "url": "http://127.0.0.1:1"}
    return parse_settings({"models": [entry], "engines": [engine]}).models[0]


def test_computed_where_not_given(tmp_path: Path) -> None:
    """The settings need no number; the element type may be another than the model's."""
    assert find_kv_bytes(0, model(tmp_path, models.DEEPSEEK_V3)) == 70_272
    assert find_kv_bytes(0, model(tmp_path, models.DEEPSEEK_V3, kv_dtype="fp8")) == 35_136


@pytest.mark.parametrize(
    ("link", "computed"),
    [
        ({}, 73_728),  # learnt later: windows are kept until then
        ({"separate_object_groups": False}, 73_728),
        ({"separate_object_groups": True}, 36_864),
        ({"path": "nixl", "bridge": None}, 36_864),
    ],
)
def test_windows_count_where_links_move_them_for_every_token(
    tmp_path: Path, link: dict[str, Any], computed: int
) -> None:
    """LMCache without separate groups has twice as many bytes for a token of gpt-oss as its full layers have."""
    (tmp_path / "config.json").write_text(json.dumps(models.GPT_OSS_120B))
    engine = {"role": "MD", "model": "m", "url": "http://127.0.0.1:1"}
    settings = parse_settings(
        {
            "models": [{"name": "m", "path": str(tmp_path)}],
            "engines": [engine | {"id": region, "region": region} for region in "ab"],
            "links": [{"source": "a", "dest": "b", "bridge": "http://127.0.0.1:1"} | link],
        }
    )
    assert find_kv_bytes(0, settings.models[0], links_of(settings.models[0], settings)) == computed


def test_a_given_number_wins_and_a_wrong_one_is_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The old formula's number for DeepSeek V3 is used as it is, with a warning that has both."""
    with caplog.at_level(logging.WARNING):
        assert find_kv_bytes(2, model(tmp_path, models.DEEPSEEK_V3, kv_bytes_per_token=1_748_992)) == 1_748_992
    assert caplog.messages == [
        "models[2].kv_bytes_per_token: 1748992 is given and used, but config.json makes it 70272"
    ]


@pytest.mark.parametrize(
    ("config", "given"),
    [
        (models.DEEPSEEK_V3, 70_272),
        (models.DEEPSEEK_V3, 70_900),  # 0.9 % more: padding
        (models.GPT_OSS_120B, 36_864),
        (models.GPT_OSS_120B, 73_728),  # windows kept whole
    ],
)
def test_a_given_number_that_may_be_right_is_not_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, config: dict[str, Any], given: int
) -> None:
    """One per cent is allowed, and windows that the store keeps for every token."""
    with caplog.at_level(logging.WARNING):
        assert find_kv_bytes(0, model(tmp_path, config, kv_bytes_per_token=given)) == given
    assert caplog.messages == []


def test_a_given_number_needs_no_config_json(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Without the file, or with a shape that is not known, nobody can contradict it."""
    with caplog.at_level(logging.WARNING):
        assert find_kv_bytes(0, model(tmp_path, None, kv_bytes_per_token=10)) == 10
        assert find_kv_bytes(0, model(tmp_path, {"model_type": "rwkv9"}, kv_bytes_per_token=10)) == 10
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (None, "no such file"),
        ({"model_type": "rwkv9"}, "num_hidden_layers is missing"),
        ({**models.QWEN3_32B, "layer_types": ["spiral"] * 64}, "layer_types has 'spiral'"),
        (models.MAMBA2, "only states"),
    ],
)
def test_what_cannot_be_computed_must_be_given(tmp_path: Path, config: dict[str, Any] | None, reason: str) -> None:
    """The start is refused with the setting to give and the key of config.json."""
    with pytest.raises(BadSettings, match=rf"models\[1\]\.kv_bytes_per_token: .*give.*{reason}|{reason}.*give"):
        find_kv_bytes(1, model(tmp_path, config))
