"""Tokens from ranks, as Kimi's directories have them."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from gateway.text.detokenise import OutputText, TextOptions
from gateway.text.model import load_model
from gateway.text.token_files import TIKTOKEN, ModelDirectoryError
from gateway.text.vocabulary import byte_alphabet
from tests.gateway.model_dir import make_model_dir


def write_ranks(directory: Path, source: Path) -> None:
    """Write the tokens of a byte-level tokenizer as ranks, and its control tokens beside them."""
    tokenizer = json.loads((source / "tokenizer.json").read_text(encoding="utf-8"))
    alphabet = byte_alphabet()
    added = {token["id"]: token for token in tokenizer["added_tokens"]}
    lines = [
        f"{base64.b64encode(bytes(alphabet[letter] for letter in name)).decode()} {rank}\n"
        for name, rank in tokenizer["model"]["vocab"].items()
        if rank not in added
    ]
    (directory / TIKTOKEN).write_text("".join(lines), encoding="ascii")
    settings = {"eos_token": "<|im_end|>", "added_tokens_decoder": {str(id_): token for id_, token in added.items()}}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory without tokenizer.json."""
    made = make_model_dir(tmp_path)
    write_ranks(made, made)
    return made


@pytest.mark.parametrize("text", ["Hello world!", "東京の天気は晴れです。", "😀 naïve\n\t x", "Příliš žluťoučký kůň"])
def test_answers_read_as_the_tokenizer_has_them(directory: Path, text: str) -> None:
    """Each id means what it means to the engine's tokenizer, within characters, too; control tokens are left out."""
    whole = load_model("whole", directory)
    (directory / "tokenizer.json").unlink()
    model = load_model("ranks", directory, by_engine=True)
    whole.close()
    model.close()
    end = whole.tokenizer.token_to_id("<|im_end|>")
    assert end is not None
    ids = [*whole.encoder.encode_now(text), end]
    output = OutputText(model.vocabulary, TextOptions())

    assert "".join(output.push([id_]).text for id_ in ids) + output.finish(terminator=True) == text
    assert (model.encodes, whole.encodes) == (False, True)
    assert model.eos_token_ids == whole.eos_token_ids and model.vocabulary.size == whole.vocabulary.size


def test_the_remedy_is_named(directory: Path) -> None:
    """A start without tokenizer.json is refused where prompts are made here, and says what would do."""
    (directory / "tokenizer.json").unlink()
    with pytest.raises(ModelDirectoryError, match=r"tokenizer\.json.*reader: engine"):
        load_model("m", directory)
    (directory / TIKTOKEN).unlink()
    with pytest.raises(ModelDirectoryError, match=r"tokenizer\.json.*tiktoken\.model"):
        load_model("m", directory, by_engine=True)


@pytest.mark.parametrize("text", ["one", "QQ== x", "???? 1", "QQ== 1 2"])
def test_ranks_that_are_none_are_refused(directory: Path, text: str) -> None:
    """A file that is something else is named."""
    (directory / "tokenizer.json").unlink()
    (directory / TIKTOKEN).write_text(text)
    with pytest.raises(ModelDirectoryError, match=TIKTOKEN):
        load_model("m", directory, by_engine=True)


def test_odd_settings_are_refused(directory: Path) -> None:
    """So are control tokens that are none."""
    (directory / "tokenizer.json").unlink()
    odd: list[Any] = [{"added_tokens_decoder": []}, {"added_tokens_decoder": {"1": "x"}}]
    for settings in odd:
        (directory / "tokenizer_config.json").write_text(json.dumps(settings))
        with pytest.raises(ModelDirectoryError):
            load_model("m", directory, by_engine=True)
