"""One choice of an answer: the relay's ids in, what a client may see out."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from backends.types import TokenLogprob
from gateway.errors import GatewayError
from gateway.relay.types import Answer, Finish, Tokens
from gateway.text.message import MessageReader, Parts
from gateway.text.output import OutputText, TextOptions
from gateway.text.tools import CallDelta
from gateway.text.vocabulary import Vocabulary

LEAST_LOGPROB = -9999.0


@dataclass(frozen=True, slots=True)
class Addition:
    """What some tokens added to a choice. ``ids`` may be without text and the other way round."""

    content: str
    ids: tuple[int, ...]
    offsets: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None
    reasoning: str = ""
    calls: tuple[CallDelta, ...] = ()

    @property
    def has_text(self) -> bool:
        """Whether a client sees anything of it."""
        return bool(self.content or self.reasoning or self.calls)


@dataclass(frozen=True, slots=True)
class Ending:
    """How a choice ended; ``parts``: what was still held back."""

    parts: Parts
    reason: str
    stop_reason: int | str | None


class Choice:
    """Follows one answer to its end."""

    def __init__(
        self,
        index: int,
        answer: Answer,
        vocabulary: Vocabulary,
        options: TextOptions,
        reader: MessageReader | None = None,
    ) -> None:
        self.index = index
        self.completion_tokens = 0
        self.cached_tokens: int | None = None
        self._answer = answer
        self._output = OutputText(vocabulary, options)
        self._reader = reader
        self._is_stopped = False

    def take(self, tokens: Tokens) -> Addition | None:
        """Take the next ids; None once a stop string was found. Raises GatewayError on a gap."""
        output = self._output
        if self._is_stopped:
            return None
        if tokens.position != output.tokens:
            raise GatewayError(500, "The answer's tokens came out of order.", code="internal_error")
        piece = output.push(tokens.ids)
        self.completion_tokens = output.tokens
        if piece.stopped:
            self._is_stopped = True
            self._answer.stop_at(output.tokens)
        logprobs = None if tokens.logprobs is None else tuple(map(clamp, tokens.logprobs[: len(piece.ids)]))
        if self._reader is None:
            return Addition(piece.text, piece.ids, piece.offsets, logprobs)
        parts = self._reader.push(piece.text)
        return Addition(parts.content, piece.ids, piece.offsets, logprobs, parts.reasoning, parts.calls)

    def end(self, finish: Finish) -> Ending:
        """Take the end."""
        parts = self._end_parts(self._output.finish(finish.terminator))
        stopped = self._output.stopped
        self.completion_tokens = finish.completion_tokens if stopped is None else self._output.tokens
        self.cached_tokens = finish.cached_tokens
        reason: str = "stop" if stopped is not None else finish.reason
        if reason == "stop" and self._reader is not None and self._reader.called:
            reason = "tool_calls"
        return Ending(parts, reason, stopped if stopped is not None else finish.stop_reason)

    def _end_parts(self, text: str) -> Parts:
        if self._reader is None:
            return Parts(text)
        last, held = self._reader.push(text), self._reader.flush()
        return Parts(last.content + held.content, last.reasoning + held.reasoning, last.calls + held.calls)


def clamp(logprob: TokenLogprob) -> TokenLogprob:
    """Return a log-probability that JSON can spell."""
    top = tuple((token_id, finite(value)) for token_id, value in logprob.top)
    return TokenLogprob(logprob.token_id, finite(logprob.logprob), top)


def finite(value: float) -> float:
    """Return OpenAI's stand-in for what is no number or too small."""
    return value if math.isfinite(value) and value > LEAST_LOGPROB else LEAST_LOGPROB


def count_cached(choices: Sequence[Choice], n: int) -> int | None:
    """Return the cached tokens of all prompts, each counted once; None where no engine said."""
    known = [choice.cached_tokens for choice in choices[::n] if choice.cached_tokens is not None]
    return sum(known) if known else None
