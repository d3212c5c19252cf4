"""Token ids to the text that a client may see, one id at a time. No I/O.

The text of all pushes and the flush together is what the tokenizer's one-shot ``decode`` makes of the same ids, however
they arrive, and no push raises. State is never seeded with a prompt: an answer's text is made of its own ids alone.

Three ways, by the tokenizer's dialect. Byte-level vocabularies: bytes through an incremental UTF-8 decoder. Piecewise
ones (sentencepiece style): each token's piece; a run of byte tokens waits for its end, as one bad byte in the run
changes how all of it reads. Others: the text that a window of the last tokens gained.
"""

import codecs
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from gateway.text.stops import StopMatcher
from gateway.text.vocabulary import Vocabulary

WINDOW_TOKENS = 64
KEPT_TOKENS = 16
REPLACEMENT = "\ufffd"


class Detokeniser(Protocol):
    """One answer's way from ids to text."""

    def push(self, token_id: int) -> str:
        """Return the text that is certain now and was not before."""
        ...

    def flush(self) -> str:
        """Return the rest; bytes that never became a character read as U+FFFD."""
        ...


def make_detokeniser(
    vocabulary: Vocabulary, *, skip_special_tokens: bool = True, spaces_between_special_tokens: bool = True
) -> Detokeniser:
    """Return a fresh detokeniser in the vocabulary's dialect."""
    skipped = vocabulary.special if skip_special_tokens else frozenset[int]()
    match vocabulary.dialect:
        case "bytes":
            return ByteDetokeniser(vocabulary, skipped)
        case "pieces":
            joined = not skip_special_tokens and not spaces_between_special_tokens
            return PieceDetokeniser(vocabulary, skipped, joined)
        case "window":
            return WindowDetokeniser(vocabulary, skipped)


class ByteDetokeniser:
    """Byte-level vocabularies."""

    __slots__ = ("_bytes", "_decode", "_skipped")

    def __init__(self, vocabulary: Vocabulary, skipped: frozenset[int]) -> None:
        self._bytes = vocabulary.bytes
        self._skipped = skipped
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def push(self, token_id: int) -> str:
        """Return the characters that the token's bytes complete."""
        return "" if token_id in self._skipped else self._decode(self._bytes[token_id])

    def flush(self) -> str:
        """Return U+FFFD for a character left incomplete."""
        return self._decode(b"", True)


class PieceDetokeniser:
    """Piecewise vocabularies; ``joined``: an added token right after another one adds its own spelling alone."""

    __slots__ = ("_after_added", "_joined", "_run", "_skipped", "_started", "_vocabulary")

    def __init__(self, vocabulary: Vocabulary, skipped: frozenset[int], joined: bool) -> None:
        self._vocabulary = vocabulary
        self._skipped = skipped
        self._joined = joined
        self._started = False
        self._after_added = False
        self._run: list[str] = []

    def push(self, token_id: int) -> str:
        """Return the piece, after the byte run that it ends; "" inside a byte run."""
        vocabulary = self._vocabulary
        name = vocabulary.name(token_id)
        if name is None or token_id in self._skipped:
            return ""
        if token_id in vocabulary.byte_ids:
            self._run.append(name)
            self._after_added = False
            return ""
        ended = self.flush() if self._run else ""
        added = vocabulary.added.get(token_id) if self._joined else None
        if added is not None and self._after_added:
            return ended + added
        self._after_added = added is not None
        return ended + (vocabulary.piece(token_id) if self._started else self._decode([name]))

    def flush(self) -> str:
        """Return the text of the open byte run."""
        run, self._run = self._run, []
        return self._decode(run) if run else ""

    def _decode(self, names: list[str]) -> str:
        if self._started:
            return self._vocabulary.decode_inner(names)
        self._started = True
        return self._vocabulary.decode_first(names)


class WindowDetokeniser:
    """Vocabularies with any other decoder."""

    __slots__ = ("_ids", "_shown", "_skipped", "_vocabulary")

    def __init__(self, vocabulary: Vocabulary, skipped: frozenset[int]) -> None:
        self._vocabulary = vocabulary
        self._skipped = skipped
        self._ids: list[int] = []
        self._shown = ""

    def push(self, token_id: int) -> str:
        """Return what the window's text gained; "" while its end is not yet a character."""
        if token_id in self._skipped or self._vocabulary.name(token_id) is None:
            return ""
        self._ids.append(token_id)
        text = self._decode()
        if text.endswith(REPLACEMENT) or not text.startswith(self._shown):
            return ""
        gained, self._shown = text[len(self._shown) :], text
        if len(self._ids) > WINDOW_TOKENS:
            self._ids = self._ids[-KEPT_TOKENS:]
            self._shown = self._decode()
        return gained

    def flush(self) -> str:
        """Return the text that was held back."""
        text = self._decode()
        common = 0
        for old, new in zip(self._shown, text, strict=False):
            if old != new:
                break
            common += 1
        self._shown = text
        return text[common:]

    def _decode(self) -> str:
        return self._vocabulary.tokenizer.decode(self._ids, skip_special_tokens=False)


@dataclass(frozen=True, slots=True)
class TextOptions:
    """How the client wants the text made; ``terminators``: ids that may end the answer and are then no text."""

    stop: tuple[str, ...] = ()
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    min_tokens: int = 0
    terminators: frozenset[int] = frozenset()
    shown: Mapping[int, str] = field(default_factory=dict)
    """Texts of tokens that are no text for a client, but for who reads the message's parts from it."""


class Piece(msgspec.Struct, frozen=True):
    """What some ids added: ``ids`` up to the one that completed a stop string, and their offsets in the text."""

    text: str
    ids: tuple[int, ...]
    offsets: tuple[int, ...]
    stopped: bool


class OutputText:
    """Detokenises, drops the terminator, matches stop strings over the joined text."""

    def __init__(self, vocabulary: Vocabulary, options: TextOptions) -> None:
        self._detokeniser = make_detokeniser(
            vocabulary,
            skip_special_tokens=options.skip_special_tokens,
            spaces_between_special_tokens=options.spaces_between_special_tokens,
        )
        self._detokenise = self._detokeniser.push
        self._stops = StopMatcher(options.stop, include_stop_str_in_output=options.include_stop_str_in_output)
        self._options = options
        self._terminator: int | None = None
        self._made_characters = 0
        self.tokens = 0
        """Ids taken so far; after a stop string matched, the ids that its text needed."""

    @property
    def stopped(self) -> str | None:
        """The stop string that was found."""
        return self._stops.stopped

    def push(self, ids: Sequence[int]) -> Piece:
        """Take the next ids; those after the one that completes a stop string are dropped."""
        text = ""
        offsets: list[int] = []
        for token_id in ids:
            if self._terminator is not None:
                text += self._release_terminator()
            if self._stops.stopped is not None:
                break
            self.tokens += 1
            offsets.append(self._made_characters)
            if token_id in self._options.terminators:
                self._terminator = token_id
            elif made := self._make(token_id) if self._options.shown else self._detokenise(token_id):
                if self._options.stop:
                    text += self._match(made)
                else:
                    self._made_characters += len(made)
                    text += made
        taken = tuple(ids) if len(offsets) == len(ids) else tuple(ids[: len(offsets)])
        return Piece(text, taken, tuple(offsets), self._stops.stopped is not None)

    def finish(self, terminator: bool) -> str:
        """Return the rest of the text; ``terminator``: the last id ended the answer."""
        if self.stopped is not None:
            return ""
        if terminator and not self._options.include_stop_str_in_output:
            self._terminator = None
        text = self._release_terminator() if self._terminator is not None else ""
        return text + self._match(self._detokeniser.flush()) + self._stops.flush()

    def _release_terminator(self) -> str:
        # An id that could have ended the answer and did not is text like any other.
        assert self._terminator is not None
        token_id, self._terminator = self._terminator, None
        return self._match(self._make(token_id))

    def _make(self, token_id: int) -> str:
        shown = self._options.shown.get(token_id)
        return self._detokeniser.push(token_id) if shown is None else self._detokeniser.flush() + shown

    def _match(self, text: str) -> str:
        self._made_characters += len(text)
        return self._stops.push(text, self.tokens > self._options.min_tokens)
