"""Models as the settings name them."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from gateway.config.settings import Settings, parse_settings
from gateway.fleet.build import load_models
from tests.gateway.model_dir import CHATML, make_model_dir


def settings_of(path: Path, **fields: Any) -> Settings:
    """Settings of one model."""
    engine = {"id": "p1", "role": "P", "model": "m", "region": "a", "url": "http://127.0.0.1:9"}
    model = {"name": "m", "path": str(path), "kv_bytes_per_token": 1, **fields}
    return parse_settings({"models": [model], "engines": [engine]})


@pytest.mark.parametrize(
    ("fields", "config", "reasoning", "media"),
    [
        ({}, {}, {"reasoning", "reasoning_content"}, False),
        ({"reasoning_field": "reasoning"}, {"vision_config": {}}, {"reasoning"}, True),
        ({"reasoning_field": "reasoning_content", "media": True}, {}, {"reasoning_content"}, True),
        ({"media": False}, {"audio_config": {}}, {"reasoning", "reasoning_content"}, False),
    ],
)
def test_what_settings_say_of_answers(
    tmp_path: Path, fields: dict[str, Any], config: dict[str, Any], reasoning: set[str], media: bool
) -> None:
    """Settings say where reasoning stands, and whether chats may hold media where config.json does not tell."""
    directory = make_model_dir(tmp_path / "m")
    told = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    (directory / "config.json").write_text(json.dumps(told | config), encoding="utf-8")
    (model,) = load_models(settings_of(directory, **fields)).values()
    model.close()
    assert model.reasoning_fields == reasoning
    assert model.takes_media == media


@pytest.mark.parametrize(
    ("calls", "fields", "is_warned"),
    [
        ("<odd>", {}, True),
        ("<odd>", {"tool_parser": "none"}, False),
        ("<odd>", {"tool_parser": "hermes"}, False),
        ("<tool_call> arguments", {}, False),
    ],
)
def test_unknown_calls_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, calls: str, fields: dict[str, Any], is_warned: bool
) -> None:
    """API-122: a model that is shown tools and writes calls in a way that is not known is warned of at the start."""
    directory = make_model_dir(tmp_path / "m")
    (directory / "chat_template.jinja").write_text(f"{{{{ tools }}}}{calls}{CHATML}", encoding="utf-8")
    with caplog.at_level(logging.WARNING):
        for model in load_models(settings_of(directory, **fields)).values():
            model.close()
    assert ("stay text" in caplog.text) == is_warned


@pytest.mark.parametrize(("given", "is_told"), [(None, False), (4096, False), (2000, False), (4097, True)])
def test_a_context_longer_than_the_models_own_is_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, given: int | None, is_told: bool
) -> None:
    """The settings' number holds, and where config.json contradicts it, key and both numbers are named at start."""
    directory = make_model_dir(tmp_path / "m", context_tokens=4096)
    with caplog.at_level(logging.WARNING):
        (model,) = load_models(settings_of(directory, context_tokens=given)).values()
        model.close()
    assert model.context_tokens == given or given is None
    assert ("models[0].context_tokens: 4097 is given" in caplog.text and "tells 4096" in caplog.text) is is_told
