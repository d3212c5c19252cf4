"""Text and bytes of single tokens, and which incremental decoding the tokenizer's decoder allows."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from tokenizers import Tokenizer

DecoderKind = Literal["bytes", "pieces", "window"]
"""``bytes``: a token is a run of UTF-8 bytes. ``pieces``: a token is a piece of text that depends only on whether it
comes first, but for runs of byte tokens. ``window``: anything else."""

ANCHOR = "a"
BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")


def byte_alphabet() -> dict[str, int]:
    """Return byte-level BPE's letters: printable bytes stand for themselves, the rest follow from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + rank): byte for rank, byte in enumerate(others)}


def find_dialect(tokenizer: Tokenizer) -> tuple[DecoderKind, bool]:
    """Return the dialect, and whether tokens like ``<0xE4>`` are bytes."""
    decoder = tokenizer.decoder
    steps = [] if decoder is None else flatten(json.loads(decoder.__getstate__()))
    kinds = [step["type"] for step in steps]
    if [kind for kind in kinds if kind != "Fuse"] == ["ByteLevel"] and kinds[0] == "ByteLevel":
        return "bytes", False
    fused = kinds.index("Fuse") if "Fuse" in kinds else len(kinds)
    context_free = all(is_context_free(step, rank > fused) for rank, step in enumerate(steps))
    if not context_free or (decoder is not None and decoder.decode([ANCHOR]) != ANCHOR):
        return "window", False
    return "pieces", "ByteFallback" in kinds


def flatten(decoder: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return a decoder's steps in order."""
    if decoder["type"] == "Sequence":
        return [step for part in decoder["decoders"] for step in flatten(part)]
    return [decoder]


def is_context_free(step: Mapping[str, Any], after_fuse: bool) -> bool:
    """Say whether a step's work on one token needs no other token than "is there one before"."""
    match step["type"]:
        case "ByteFallback" | "Metaspace" | "WordPiece":
            return not after_fuse
        case "Fuse":
            return True
        case "Replace":
            return not after_fuse and "String" in step["pattern"] and step["pattern"]["String"] != ANCHOR
        case "Strip":
            return not after_fuse or (step["start"] <= 1 and step["stop"] == 0)
    return False


class TokenBytes(dict[int, bytes]):
    """The bytes of tokens, made when they are first asked for."""

    def __init__(self, make: Callable[[int], bytes]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, token_id: int) -> bytes:
        made = self[token_id] = self._make(token_id)
        return made


class Vocabulary:
    """What each token id of one tokenizer means as text. Ids that the tokenizer does not know mean nothing."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        names = tokenizer.get_vocab(with_added_tokens=True)
        self.size = max(names.values(), default=-1) + 1
        self.dialect, byte_fallback = find_dialect(tokenizer)
        self.byte_ids = frozenset(i for name, i in names.items() if byte_fallback and BYTE_TOKEN.fullmatch(name))
        added = tokenizer.get_added_tokens_decoder()
        self.added: dict[int, str] = {token_id: token.content for token_id, token in added.items()}
        special_texts = {token.content for token in added.values() if token.special}
        self.special: frozenset[int] = frozenset(i for i, text in self.added.items() if text in special_texts)
        self._alphabet = byte_alphabet()
        self.bytes = TokenBytes(self._make_bytes)
        """What each token adds inside a text; some of a character's bytes where it is split."""
        self._pieces: dict[int, str] = {}

    def name(self, token_id: int) -> str | None:
        """Return the token as the vocabulary spells it."""
        return self.tokenizer.id_to_token(token_id) if 0 <= token_id < self.size else None

    def piece(self, token_id: int) -> str:
        """Return the text that the token adds after other text, for the ``pieces`` dialect."""
        known = self._pieces.get(token_id)
        if known is None:
            name = self.name(token_id)
            known = self._pieces[token_id] = "" if name is None else self.decode_inner([name])
        return known

    def decode_first(self, names: Sequence[str]) -> str:
        """Decode tokens that begin a text."""
        decoder = self.tokenizer.decoder
        return " ".join(names) if decoder is None else str(decoder.decode(list(names)))

    def decode_inner(self, names: Sequence[str]) -> str:
        """Decode tokens that follow others."""
        return self.decode_first([ANCHOR, *names])[len(ANCHOR) :]

    def _make_bytes(self, token_id: int) -> bytes:
        name = self.name(token_id)
        if name is None:
            return b""
        if self.dialect == "bytes":
            letters = [self._alphabet.get(letter) for letter in name]
            known = [letter for letter in letters if letter is not None]
            return bytes(known) if len(known) == len(name) else name.encode()
        if token_id in self.byte_ids:
            return bytes([int(name[3:5], 16)])
        if self.dialect == "pieces":
            return self.piece(token_id).encode()
        return self.tokenizer.decode([token_id], skip_special_tokens=False).encode()
