"""What tokens mean, from whatever file of a model directory tells it.

``tokenizer.json`` tells all. ``tiktoken.model`` (Kimi) tells the bytes of each token, which is enough to write answers;
how texts are split stands in code of the model's own, so only its engines can make prompts.
"""

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from gateway.text.vocabulary import byte_alphabet

TIKTOKEN = "tiktoken.model"


class ModelDirectoryError(Exception):
    """A model directory cannot be used; ``str()`` names the file."""


def read_tokens(directory: Path, settings: Mapping[str, Any], *, by_engine: bool) -> tuple[Tokenizer, bool]:
    """Return a model's tokens, and whether texts can be tokenised here. Raises ModelDirectoryError.

    ``settings``: of tokenizer_config.json. ``by_engine``: engines make the prompts.
    """
    path, ranks = directory / "tokenizer.json", directory / TIKTOKEN
    if path.is_file() or not (by_engine and ranks.is_file()):
        return read_tokenizer(path, f"; {hint(ranks.is_file())}"), True
    return read_tiktoken(ranks, settings), False


def hint(has_ranks: bool) -> str:
    """Return what to do about a missing tokenizer.json."""
    if has_ranks:
        return f"{TIKTOKEN} is there: with `reader: engine` an engine makes the prompts"
    return f"only models with {TIKTOKEN} can do without it, by `reader: engine`"


def read_tokenizer(path: Path, remedy: str = "") -> Tokenizer:
    """Load tokenizer.json; truncation and padding that it may ask for are for training batches."""
    if not path.is_file():
        raise ModelDirectoryError(f"{path}: no such file (the gateway needs the fast tokenizer's file{remedy})")
    try:
        tokenizer = Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except Exception as error:  # the tokenizers package raises bare Exception for a bad file
        raise ModelDirectoryError(f"{path}: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def read_tiktoken(path: Path, settings: Mapping[str, Any]) -> Tokenizer:
    """Load the bytes of tokens by rank, and the control tokens of tokenizer_config.json. Raises ModelDirectoryError."""
    letters = {byte: letter for letter, byte in byte_alphabet().items()}
    names: dict[str, int] = {}
    try:
        for line in filter(None, path.read_bytes().splitlines()):
            spelled, rank = line.split()
            names["".join(letters[byte] for byte in base64.b64decode(spelled, validate=True))] = int(rank)
        added = {
            int(id_): AddedToken(**_fields(told)) for id_, told in settings.get("added_tokens_decoder", {}).items()
        }
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ModelDirectoryError(f"{path}: {error}") from error
    names |= {token.content: id_ for id_, token in added.items()}
    tokenizer = Tokenizer(models.BPE(names, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens(list(added.values()))
    return tokenizer


def _fields(told: Mapping[str, Any]) -> dict[str, Any]:
    known = ("single_word", "lstrip", "rstrip", "normalized", "special")
    return {"content": told["content"]} | {name: told[name] for name in known if name in told}
