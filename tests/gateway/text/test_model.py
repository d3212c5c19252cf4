"""Loading a model directory."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from gateway.text.model import load_model
from gateway.text.parsers.registry import REASONING_PARSERS, TOOL_PARSERS
from gateway.text.token_files import ModelDirectoryError


def copy(model_dir: Path, target: Path, **changes: Any) -> Path:
    """Copy the directory; a change is a file's new JSON or text, or None to remove it."""
    shutil.copytree(model_dir, target)
    for name, content in changes.items():
        path = target / name.replace("__", ".")
        if content is None:
            path.unlink()
        else:
            path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return target


def test_loads(model_dir: Path) -> None:
    """Tokenizer, template, EOS ids and the context length come from the directory."""
    model = load_model("m", model_dir)
    assert model.name == "m"
    assert model.context_tokens == 4096
    names = {model.tokenizer.id_to_token(token_id) for token_id in model.eos_token_ids}
    assert names == {"<|im_end|>", "<|endoftext|>"}
    assert model.template is not None
    model.close()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"tokenizer__json": None}, "tokenizer.json"),
        ({"tokenizer__json": "{"}, "tokenizer.json"),
        ({"config__json": None}, "config.json"),
        ({"config__json": "{"}, "config.json"),
        ({"config__json": "[]"}, "config.json"),
        ({"chat_template__jinja": "{% for %}"}, "chat template, line 1"),
    ],
)
def test_unusable_directory(model_dir: Path, tmp_path: Path, changes: dict[str, Any], named: str) -> None:
    """An error at start names the file that is missing or wrong."""
    with pytest.raises(ModelDirectoryError, match=named):
        load_model("m", copy(model_dir, tmp_path / "copy", **changes))


def test_no_directory(tmp_path: Path) -> None:
    """A missing directory is named."""
    with pytest.raises(ModelDirectoryError, match="no such directory"):
        load_model("m", tmp_path / "none")


@pytest.mark.parametrize(
    "template", ["{{ eos_token }}{{ pad_token }}", [{"name": "default", "template": "{{ eos_token }}{{ pad_token }}"}]]
)
def test_template_in_the_settings(model_dir: Path, tmp_path: Path, template: Any) -> None:
    """A template may be in tokenizer_config.json, alone or named; special tokens are its variables."""
    settings = {"chat_template": template, "eos_token": "E", "pad_token": {"content": "P"}}
    directory = copy(model_dir, tmp_path / "copy", chat_template__jinja=None, tokenizer_config__json=settings)
    model = load_model("m", directory)
    assert model.template is not None
    assert model.template.render([{"role": "user", "content": ""}]) == "EP"
    model.close()


TOOL: Any = [{"function": {"name": "f"}}]


@pytest.mark.parametrize(
    ("files", "plain", "with_tools"),
    [
        ({"chat_template.jinja": "file"}, "file", "file"),
        ({"chat_template.jinja": "file", "additional_chat_templates/tool_use.jinja": "tools"}, "file", "tools"),
        ({"chat_template.jinja": "file", "additional_chat_templates/rag.jinja": "rag"}, "file", "file"),
        ({"chat_template.json": '{"chat_template": "processor"}'}, "processor", "settings"),
        ({"chat_template.json": '{"chat_template": "processor"}', "chat_template.jinja": "file"}, "processor", "file"),
        ({}, "settings", "settings tools"),
    ],
)
def test_outlying_templates(
    model_dir: Path, tmp_path: Path, files: dict[str, str], plain: str, with_tools: str
) -> None:
    """Templates are found in all the files that hold them, those by name for requests with tools among them."""
    named = [{"name": "default", "template": "settings"}, {"name": "tool_use", "template": "settings tools"}]
    settings = {"chat_template": "settings" if files else named}
    directory = copy(model_dir, tmp_path / "copy", chat_template__jinja=None, tokenizer_config__json=settings)
    for name, content in files.items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text(content, encoding="utf-8")
    model = load_model("m", directory)
    assert model.template is not None
    user = {"role": "user", "content": ""}
    assert (model.template.render([user]), model.template.render([user], tools=TOOL)) == (plain, with_tools)
    model.close()


def test_special_tokens_of_older_models(model_dir: Path, tmp_path: Path) -> None:
    """Special tokens that the settings leave out are those of special_tokens_map.json."""
    changes = {"tokenizer_config__json": {"eos_token": "E"}, "chat_template__jinja": "{{ bos_token }}{{ eos_token }}"}
    directory = copy(model_dir, tmp_path / "copy", **changes)
    (directory / "special_tokens_map.json").write_text('{"bos_token": {"content": "B"}, "eos_token": "old"}')
    model = load_model("m", directory)
    assert model.template is not None and model.template.render([{"role": "user", "content": ""}]) == "BE"
    model.close()


def test_little_is_needed(model_dir: Path, tmp_path: Path) -> None:
    """The tokenizer's file and a context length are enough; such a model has no template."""
    nothing = dict.fromkeys(("generation_config__json", "tokenizer_config__json", "chat_template__jinja"))
    config = {"max_position_embeddings": 99}
    model = load_model("m", copy(model_dir, tmp_path / "copy", config__json=config, **nothing))
    assert (model.context_tokens, model.template, model.eos_token_ids) == (99, None, frozenset())
    model.close()


@pytest.mark.parametrize(
    ("parts", "tokens"),
    [
        ({"text_config": {"max_position_embeddings": 77}}, 77),
        ({"thinker_config": {"audio_config": {"n_positions": 5}, "text_config": {"n_positions": 77}}}, 77),
        ({"llm_config": {"seq_length": 77}, "vision_config": {"max_position_embeddings": 9}}, 77),
        ({"language_config": {"max_position_embeddings": 77}}, 77),
        ({"text_config": {"hidden_size": 8}}, None),
        ({"text_config": None, "max_position_embeddings": "77"}, None),
        ({}, None),
    ],
)
def test_context_one_level_down(model_dir: Path, tmp_path: Path, parts: dict[str, Any], tokens: int | None) -> None:
    """A model of several parts has its context length in one of them, or nowhere; EOS may be a single id."""
    config = {**parts, "eos_token_id": 5}
    directory = copy(
        model_dir, tmp_path / "copy", config__json=config, generation_config__json=None, tokenizer_config__json={}
    )
    model = load_model("m", directory)
    assert (model.context.known_tokens, model.eos_token_ids) == (tokens, frozenset({5}))
    model.close()


def test_parsers(model_dir: Path) -> None:
    """A model may have parsers for its reasoning and tool calls, by names that engines use; others are refused."""
    model = load_model("m", model_dir, reasoning_parser="qwen3", tool_parser="hermes")
    assert (model.parsers.tools, model.parsers.thinking) == (TOOL_PARSERS["hermes"], REASONING_PARSERS["qwen3"])
    model.close()
    with pytest.raises(ModelDirectoryError, match="reasoning_parser 'x'"):
        load_model("m", model_dir, reasoning_parser="x")
    with pytest.raises(ModelDirectoryError, match="tool_parser 'x'"):
        load_model("m", model_dir, tool_parser="x")
