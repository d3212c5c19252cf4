"""The model's tokenizer, as far as an engine needs one."""

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream


class TokenizerMissing(Exception):
    """The model directory has no tokenizer.json: only token-id prompts can be served."""


class TextStream:
    """Text of ids that arrive piece by piece; bytes of an unfinished character are held back."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)

    def push(self, token_ids: Sequence[int]) -> str:
        """Text that ``token_ids`` completed; empty without a tokenizer."""
        if self._tokenizer is None:
            return ""
        return "".join(self._stream.step(self._tokenizer, token) or "" for token in token_ids)


class Text:
    """Wraps ``tokenizer.json``; a directory without it still serves token-id prompts."""

    def __init__(self, directory: Path) -> None:
        path = directory / "tokenizer.json"
        self._tokenizer = Tokenizer.from_file(str(path)) if path.is_file() else None

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of ``text``. Raises TokenizerMissing."""
        return list(self._loaded().encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """Text of ``token_ids``. Raises TokenizerMissing."""
        return str(self._loaded().decode(list(token_ids), skip_special_tokens=skip_special_tokens))

    def stream(self) -> TextStream:
        """A decoder for one answer."""
        return TextStream(self._tokenizer)

    def spell(self, token_id: int) -> str:
        """The text of one token alone, for logprobs."""
        return self.decode([token_id]) if self._tokenizer is not None else f"token_id:{token_id}"

    def _loaded(self) -> Tokenizer:
        if self._tokenizer is None:
            raise TokenizerMissing
        return self._tokenizer
