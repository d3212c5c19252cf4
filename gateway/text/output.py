"""One choice's text: ids in, what the client may see out. No I/O."""

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.text.detokenise import make_detokeniser
from gateway.text.stops import StopMatcher
from gateway.text.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class TextOptions:
    """How the client wants the text made; ``terminators``: ids that may end the answer and are then no text."""

    stop: tuple[str, ...] = ()
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    min_tokens: int = 0
    terminators: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Piece:
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
            elif made := self._detokeniser.push(token_id):
                text += self._match(made)
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
        return self._match(self._detokeniser.push(token_id))

    def _match(self, text: str) -> str:
        self._made_characters += len(text)
        return self._stops.push(text, self.tokens > self._options.min_tokens)
