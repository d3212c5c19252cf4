"""One choice of an answer: the relay's ids in, and what a client sees out, in the shapes of chat and completions."""

import math
from array import array
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
from msgspec import UNSET

from backends.types import TokenLogprob
from gateway.api.prepare import PreparedRequest
from gateway.api.wire import (
    CalledFunction,
    ChatChoice,
    ChatChunkChoice,
    ChatDelta,
    ChatLogprob,
    ChatLogprobs,
    ChatMessage,
    CompletionChoice,
    CompletionLogprobs,
    TokenOrigin,
    ToolCall,
    TopLogprob,
)
from gateway.errors import GatewayError
from gateway.relay.types import Answer, Finish, Tokens
from gateway.text.detokenise import OutputText, TextOptions
from gateway.text.parsers.output import CallDelta, Parts
from gateway.text.parsers.reader import AnswerReader
from gateway.text.tokenise import Ids
from gateway.text.turns import OngoingTurn
from gateway.text.vocabulary import Vocabulary

LEAST_LOGPROB = -9999.0


class Addition(msgspec.Struct, frozen=True):
    """What some tokens added to a choice. ``ids`` may be without text and the other way round."""

    content: str
    ids: tuple[int, ...]
    offsets: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None
    reasoning: str = ""
    calls: tuple[CallDelta, ...] = ()


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
        reader: AnswerReader | None = None,
        turn: OngoingTurn | None = None,
    ) -> None:
        self.index = index
        self.completion_tokens = 0
        self.cached_tokens: int | None = None
        self._answer = answer
        self._output = OutputText(vocabulary, options)
        self._reader = reader
        self._turn = turn
        self._ids: Ids = array("I")
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
        if self._turn is not None:
            self._ids.extend(piece.ids)
        if piece.stopped:
            self._is_stopped = True
            self._answer.stop_at(output.tokens)
        logprobs = None if tokens.logprobs is None else tuple(map(clamp, tokens.logprobs[: len(piece.ids)]))
        if self._reader is None:
            return Addition(piece.text, piece.ids, piece.offsets, logprobs)
        parts = self._reader.push(piece.text)
        return Addition(parts.content, piece.ids, piece.offsets, logprobs, parts.reasoning, parts.calls)

    def end(self, finish: Finish) -> Ending:
        parts = self._end_parts(self._output.finish(finish.terminator))
        stopped = self._output.stopped
        self.completion_tokens = finish.completion_tokens if stopped is None else self._output.tokens
        self.cached_tokens = finish.cached_tokens
        if self._turn is not None and stopped is None and finish.terminator:
            self._turn.keep(self._ids)
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


@dataclass(slots=True)
class Gathered:
    """All that was added to one choice of an answer that is not streamed."""

    parts: list[Addition] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    origins: list[TokenOrigin] = field(default_factory=list)

    def content(self, ending: Ending) -> str:
        return "".join(part.content for part in self.parts) + ending.parts.content


class AnswerFormat(Protocol):
    """Builds the choices of one endpoint's answers."""

    chunk_object: str
    whole_object: str

    def open(self, prepared: PreparedRequest, index: int) -> ChatChunkChoice | CompletionChoice | None:
        """Return a choice's first chunk, which holds nothing that was generated."""
        ...

    def add(self, prepared: PreparedRequest, index: int, addition: Addition) -> ChatChunkChoice | CompletionChoice:
        """Return the chunk of one event."""
        ...

    def end(self, prepared: PreparedRequest, index: int, ending: Ending) -> ChatChunkChoice | CompletionChoice:
        """Return a choice's last chunk."""
        ...

    def whole(
        self, prepared: PreparedRequest, index: int, gathered: Gathered, ending: Ending
    ) -> ChatChoice | CompletionChoice:
        """Return a choice that is not streamed."""
        ...


class ChatFormat:
    """``/v1/chat/completions``."""

    chunk_object = "chat.completion.chunk"
    whole_object = "chat.completion"

    def open(self, prepared: PreparedRequest, index: int) -> ChatChunkChoice:
        """Return the role."""
        return ChatChunkChoice(index, ChatDelta(role="assistant", content=""))

    def add(self, prepared: PreparedRequest, index: int, addition: Addition) -> ChatChunkChoice:
        """Return the text as content."""
        is_content = addition.content and not (addition.reasoning or addition.calls)
        fields = prepared.model.reasoning_fields
        delta = ChatDelta(content=addition.content) if is_content else spell_delta(addition, fields)
        choice = ChatChunkChoice(index, delta)
        if prepared.logprobs is not None and addition.logprobs is not None:
            choice.logprobs = spell_chat(addition.logprobs, prepared.logprobs, prepared.model.vocabulary)
        if prepared.return_token_ids:
            choice.token_ids = addition.ids
        return choice

    def end(self, prepared: PreparedRequest, index: int, ending: Ending) -> ChatChunkChoice:
        """Return the finish reason, with the last text where some was held back."""
        return ChatChunkChoice(
            index,
            spell_delta(ending.parts, prepared.model.reasoning_fields),
            finish_reason=ending.reason,
            stop_reason=ending.stop_reason,
        )

    def whole(self, prepared: PreparedRequest, index: int, gathered: Gathered, ending: Ending) -> ChatChoice:
        logprobs = None
        if prepared.logprobs is not None and gathered.logprobs:
            logprobs = spell_chat(gathered.logprobs, prepared.logprobs, prepared.model.vocabulary)
        message = gather_message(gathered, ending, prepared.model.reasoning_fields)
        ids = tuple(gathered.ids) if prepared.return_token_ids else UNSET
        return ChatChoice(index, message, logprobs, ending.reason, ending.stop_reason, ids)


class CompletionFormat:
    """``/v1/completions``."""

    chunk_object = "text_completion"
    whole_object = "text_completion"

    def open(self, prepared: PreparedRequest, index: int) -> CompletionChoice | None:
        """Return the prompt where the client asked to hear it back, and its ids likewise."""
        if not prepared.echoes and not prepared.return_token_ids:
            return None
        choice = CompletionChoice(index, prepared.echoes[index // prepared.n] if prepared.echoes else "")
        if prepared.return_token_ids:
            choice.prompt_token_ids = list(prepared.prompts[index // prepared.n])
        return choice

    def add(self, prepared: PreparedRequest, index: int, addition: Addition) -> CompletionChoice:
        choice = CompletionChoice(index, addition.content)
        if prepared.logprobs is not None and addition.logprobs is not None:
            choice.logprobs = spell_completion(
                addition.logprobs, addition.offsets, prepared.logprobs, prepared.model.vocabulary
            )
        if prepared.return_token_ids:
            choice.token_ids = addition.ids
        return choice

    def end(self, prepared: PreparedRequest, index: int, ending: Ending) -> CompletionChoice:
        """Return the finish reason, with the last text where some was held back."""
        return CompletionChoice(
            index, ending.parts.content, finish_reason=ending.reason, stop_reason=ending.stop_reason
        )

    def whole(self, prepared: PreparedRequest, index: int, gathered: Gathered, ending: Ending) -> CompletionChoice:
        """Return the text, after the prompt's where the client asked to hear it back."""
        echo = prepared.echoes[index // prepared.n] if prepared.echoes else ""
        choice = CompletionChoice(index, echo + gathered.content(ending))
        choice.finish_reason = ending.reason
        choice.stop_reason = ending.stop_reason
        if prepared.logprobs is not None and gathered.logprobs:
            choice.logprobs = spell_completion(
                gathered.logprobs, gathered.offsets, prepared.logprobs, prepared.model.vocabulary
            )
        if prepared.return_token_ids:
            choice.prompt_token_ids = list(prepared.prompts[index // prepared.n])
            choice.token_ids = tuple(gathered.ids)
        return choice


def spell_reasoning(said: ChatDelta | ChatMessage, reasoning: str, fields: Collection[str]) -> None:
    """Put reasoning where the model's answers have it."""
    for name in fields if reasoning else ():
        setattr(said, name, reasoning)


def spell_delta(parts: Parts | Addition, reasoning_fields: Collection[str]) -> ChatDelta:
    """Return the parts as a chunk's delta."""
    delta = ChatDelta()
    if parts.content:
        delta.content = parts.content
    spell_reasoning(delta, parts.reasoning, reasoning_fields)
    if parts.calls:
        delta.tool_calls = [
            ToolCall(CalledFunction(call.arguments), call.index)
            if call.id is None or call.name is None
            else ToolCall(CalledFunction(call.arguments, call.name), call.index, call.id, "function")
            for call in parts.calls
        ]
    return delta


def gather_message(gathered: Gathered, ending: Ending, reasoning_fields: Collection[str]) -> ChatMessage:
    """Return the message of a whole answer; content is null where there are only tool calls."""
    content = gathered.content(ending)
    calls: list[ToolCall] = []
    reasoning = ""
    parts: tuple[Parts | Addition, ...] = (*gathered.parts, ending.parts)
    for part in parts:
        reasoning += part.reasoning
        for call in part.calls:
            if call.id is not None and call.name is not None:
                calls.append(ToolCall(CalledFunction("", call.name), id=call.id, type="function"))
            calls[call.index].function.arguments += call.arguments
    message = ChatMessage("assistant", content or None if calls else content)
    spell_reasoning(message, reasoning, reasoning_fields)
    if calls:
        message.tool_calls = calls
    return message


def spell_chat(positions: Sequence[TokenLogprob], most: int, vocabulary: Vocabulary) -> ChatLogprobs:
    """Return the chat shape with at most ``most`` alternatives a position; ``bytes`` tells split characters apart."""
    content = []
    for position in positions:
        chosen = vocabulary.bytes[position.token_id]
        alternatives = [(vocabulary.bytes[token_id], value) for token_id, value in position.top[:most]]
        top = [TopLogprob(text(data), value, list(data)) for data, value in alternatives]
        content.append(ChatLogprob(text(chosen), position.logprob, list(chosen), top))
    return ChatLogprobs(content)


def spell_completion(
    positions: Sequence[TokenLogprob], offsets: Sequence[int], most: int, vocabulary: Vocabulary
) -> CompletionLogprobs:
    """Return the completions shape; the chosen token is always among the alternatives."""
    tokens = [text(vocabulary.bytes[position.token_id]) for position in positions]
    tops = []
    for token, position in zip(tokens, positions, strict=True):
        top = {text(vocabulary.bytes[token_id]): value for token_id, value in position.top[:most]}
        tops.append({token: position.logprob, **top} if token not in top else top)
    return CompletionLogprobs(tokens, [position.logprob for position in positions], tops, list(offsets))


def text(data: bytes) -> str:
    """Return a token's bytes as text."""
    return data.decode("utf-8", "replace")
