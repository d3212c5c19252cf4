"""Writes an answer as it comes, or whole.

The status line waits for the first tokens or sign of life: what fails before is a JSON error with its own status, what
fails after is an SSE error event without [DONE].
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import uuid4

from msgspec import UNSET

from gateway.api.choices import Addition, AnswerFormat, Choice, Ending, Gathered, count_cached
from gateway.api.prepare import PreparedRequest
from gateway.api.wire import (
    AnswerBody,
    ChatChunkChoice,
    PromptTokensDetails,
    TokenOrigin,
    UsageBody,
    encode_json,
)
from gateway.errors import OPENAI_ERRORS, ErrorShape, GatewayError, RawHeaders, failed
from gateway.http.body import JsonObject
from gateway.http.client import Client, EventStream
from gateway.relay.types import Answer, AnswerSink, Finish, Tokens

KeepAnswer = Callable[[dict[str, Any]], Awaitable[None]]
"""Keeps a complete answer of an API that keeps any; what it says of that in the answer, the client gets."""
MadeChoice = tuple[Gathered, Ending]
"""All of one choice."""

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
ANY_TEXT = uuid4().hex
"""Stands for a text that nobody knows beforehand."""
SILENT_TOKENS = 128
"""So many tokens that show nothing, those of a long tool call, are followed by a sign of life."""


def encode_event(answer: AnswerBody) -> bytes:
    """Return one SSE event with the answer as its data."""
    return b"data: %s\n\n" % encode_json(answer)


def unfinished() -> GatewayError:
    """Return the failure of an answer that ended without a finish."""
    return GatewayError(502, "The answer ended before it was finished.", code="bad_gateway")


def count_usage(prepared: PreparedRequest, choices: Sequence[Choice]) -> UsageBody:
    """Return the request's usage: each prompt once, the completions of all choices."""
    prompt = prepared.prompt_tokens
    completion = sum(choice.completion_tokens for choice in choices)
    cached = count_cached(choices, prepared.n)
    details = None if cached is None else PromptTokensDetails(cached)
    return UsageBody(prompt, completion, prompt + completion, details)


class EventWriter(Protocol):
    """Turns one request's answers into SSE bytes. No I/O."""

    def take(self, index: int, tokens: Tokens) -> bytes:
        """Return the bytes of a choice's next tokens; none for ids that are no text yet."""
        ...

    def finish(self, index: int, finish: Finish) -> bytes:
        """Return the bytes of a choice's end."""
        ...

    def whole(self) -> dict[str, Any] | None:
        """Return the complete answer, after the last choice's finish; None: such answers are not kept."""
        ...

    def end(self) -> bytes:
        """Return what follows the last choice's finish. Raises GatewayError when there was none."""
        ...

    def fail(self, error: GatewayError) -> bytes:
        """Return the last event of an answer that broke off."""
        ...


class AnswerShape(Protocol):
    """How one API spells answers. ``asked`` is the client's body, of which some APIs repeat a part."""

    @property
    def errors(self) -> ErrorShape:
        """How it spells errors."""
        ...

    def open_stream(self, prepared: PreparedRequest, choices: Sequence[Choice], asked: JsonObject) -> EventWriter:
        """Return what writes a streamed answer."""
        ...

    def spell_whole(
        self, prepared: PreparedRequest, choices: Sequence[Choice], made: Sequence[MadeChoice], asked: JsonObject
    ) -> Any:
        """Return a whole answer as something that msgspec writes as JSON."""
        ...


class StreamWriter:
    """The ``EventWriter`` of chat and completions."""

    def __init__(self, prepared: PreparedRequest, form: AnswerFormat, choices: Sequence[Choice]) -> None:
        self._prepared = prepared
        self._form = form
        self._choices = choices
        self._opened = [False] * len(choices)
        self._has_plain_events = not (prepared.shows_ids or prepared.continuous_usage)
        self._frames: list[tuple[bytes, bytes] | None] = [None] * len(choices)
        self._running = len(choices)

    def take(self, index: int, tokens: Tokens) -> bytes:
        """Return the bytes of a choice's next tokens; none for ids that are no text yet."""
        prepared = self._prepared
        opening = b"" if self._opened[index] else self._open(index)
        addition = self._choices[index].take(tokens)
        if addition is None or not (addition.content or addition.reasoning or addition.calls or prepared.shows_ids):
            return opening
        if self._has_plain_events and not (addition.reasoning or addition.calls):
            before, after = self._frames[index] or self._make_frame(index)
            return b"%s%s%s%s" % (opening, before, encode_json(addition.content), after)
        answer = self._answer([self._form.add(prepared, index, addition)])
        if prepared.traced:
            answer.pdd = TokenOrigin(tokens.role, tokens.instance, tokens.position)
        return b"%sdata: %s\n\n" % (opening, encode_json(answer))

    def finish(self, index: int, finish: Finish) -> bytes:
        """Return the bytes of a choice's end."""
        opening = b"" if self._opened[index] else self._open(index)
        self._running -= 1
        ending = self._choices[index].end(finish)
        return opening + encode_event(self._answer([self._form.end(self._prepared, index, ending)]))

    def whole(self) -> None:
        """See ``EventWriter``."""

    def end(self) -> bytes:
        """Return what follows the last choice's finish. Raises GatewayError when there was none."""
        if self._running:
            raise unfinished()
        if not self._prepared.include_usage:
            return DONE
        return encode_event(self._answer([], usage=count_usage(self._prepared, self._choices))) + DONE

    def fail(self, error: GatewayError) -> bytes:
        """See ``EventWriter``."""
        return OPENAI_ERRORS.spell_event(error)

    def _open(self, index: int) -> bytes:
        self._opened[index] = True
        choice = self._form.open(self._prepared, index)
        if choice is None:
            return b""
        answer = self._answer([choice])
        if isinstance(choice, ChatChunkChoice) and self._prepared.return_token_ids:
            answer.prompt_token_ids = list(self._prepared.prompts[index // self._prepared.n])
        return encode_event(answer)

    def _make_frame(self, index: int) -> tuple[bytes, bytes]:
        """Return what stands around the text in a choice's events that add nothing else."""
        event = encode_event(self._answer([self._form.add(self._prepared, index, Addition(ANY_TEXT, (), (), None))]))
        before, _, after = event.partition(encode_json(ANY_TEXT))
        self._frames[index] = before, after
        return before, after

    def _answer(self, choices: list[Any], usage: UsageBody | None = None) -> AnswerBody:
        prepared = self._prepared
        answer = AnswerBody(prepared.id, self._form.chunk_object, prepared.created, prepared.model_name, choices)
        if prepared.continuous_usage:
            answer.usage = count_usage(prepared, self._choices)
        elif prepared.include_usage:
            answer.usage = usage
        return answer


@dataclass(frozen=True, slots=True)
class OpenAiShape:
    """Chat and completions, by the form of their choices."""

    form: AnswerFormat
    errors: ErrorShape = OPENAI_ERRORS

    def open_stream(self, prepared: PreparedRequest, choices: Sequence[Choice], asked: JsonObject) -> StreamWriter:
        """See ``AnswerShape``."""
        return StreamWriter(prepared, self.form, choices)

    def spell_whole(
        self, prepared: PreparedRequest, choices: Sequence[Choice], made: Sequence[MadeChoice], asked: JsonObject
    ) -> AnswerBody:
        """See ``AnswerShape``."""
        form = self.form
        spelled: list[Any] = [form.whole(prepared, index, *one) for index, one in enumerate(made)]
        answer = AnswerBody(prepared.id, form.whole_object, prepared.created, prepared.model_name, spelled)
        answer.usage = count_usage(prepared, choices)
        if prepared.return_token_ids and form.whole_object == "chat.completion":
            answer.prompt_token_ids = list(prepared.prompts[0])
        answer.pdd = [origin for gathered, _ in made for origin in gathered.origins] if prepared.traced else UNSET
        return answer


class _StreamSink:
    """The sink of one choice that is streamed."""

    def __init__(self, index: int, writer: EventWriter, stream: EventStream) -> None:
        self._index = index
        self._writer = writer
        self._stream = stream
        self._silent = 0
        self.room = stream.room

    def take(self, tokens: Tokens) -> None:
        data = self._writer.take(self._index, tokens)
        self._silent = 0 if data else self._silent + len(tokens.ids)
        if self._silent >= SILENT_TOKENS:
            self._silent, data = 0, KEEP_ALIVE
        if data or not self._stream.has_begun:
            self._stream.push(data)

    def keep_alive(self) -> None:
        self._stream.push(KEEP_ALIVE)

    def finish(self, finish: Finish) -> None:
        self._stream.push(self._writer.finish(self._index, finish))


async def write_stream(
    client: Client,
    answers: Sequence[Answer],
    writer: EventWriter,
    headers: RawHeaders,
    keep: KeepAnswer | None = None,
) -> None:
    """Stream the answers. Raises GatewayError while nothing was sent; later failures become an error event."""
    lines = [*headers, (b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
    lines.append((b"x-accel-buffering", b"no"))
    stream = EventStream(client, {"type": "http.response.start", "status": 200, "headers": lines})
    try:
        await run_all(answers, [_StreamSink(index, writer, stream) for index in range(len(answers))])
        if keep is not None and (whole := writer.whole()) is not None:
            await keep(whole)
        data = writer.end()
        await stream.end(data)
    except Exception as failure:  # a fault of ours, too: its client must not take a cut for an end
        if not stream.has_begun:
            raise
        told = failure if isinstance(failure, GatewayError) else failed()
        await stream.end(writer.fail(told))
        if told is not failure:
            raise
    finally:
        await stream.aclose()


class _WholeSink:
    """The sink of one choice that is not streamed. ``ending``: how it ended, once it has."""

    def __init__(self, choice: Choice) -> None:
        self._choice = choice
        self.gathered = Gathered()
        self.ending: Ending | None = None
        self.room = asyncio.Event()
        self.room.set()

    def take(self, tokens: Tokens) -> None:
        gather(self.gathered, self._choice, tokens)

    def keep_alive(self) -> None:
        """A client that waits for a whole answer sees no sign of life."""

    def finish(self, finish: Finish) -> None:
        self.ending = self._choice.end(finish)


async def write_whole(
    client: Client,
    answers: Sequence[Answer],
    prepared: PreparedRequest,
    shape: AnswerShape,
    choices: Sequence[Choice],
    asked: JsonObject,
    headers: RawHeaders,
    keep: KeepAnswer | None = None,
) -> None:
    """Send the answers when they are complete. Raises GatewayError."""
    sinks = [_WholeSink(choice) for choice in choices]
    await run_all(answers, sinks)
    made = [(sink.gathered, sink.ending) for sink in sinks if sink.ending is not None]
    if len(made) < len(sinks):
        raise unfinished()
    whole = shape.spell_whole(prepared, choices, made, asked)
    if keep is not None:
        await keep(whole)
    body = encode_json(whole)
    lines = [*headers, (b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await client.send({"type": "http.response.start", "status": 200, "headers": lines})
    await client.send({"type": "http.response.body", "body": body, "more_body": False})


async def run_all(answers: Sequence[Answer], sinks: Sequence[AnswerSink]) -> None:
    """Run the answers beside each other to their ends. Raises the first GatewayError; the others then end, too."""
    if len(answers) == 1:
        await answers[0].run(sinks[0])
        return
    runs = [asyncio.create_task(answer.run(sink)) for answer, sink in zip(answers, sinks, strict=True)]
    try:
        await asyncio.gather(*runs)
    finally:
        for run in runs:
            run.cancel()
        await asyncio.gather(*runs, return_exceptions=True)


def gather(gathered: Gathered, choice: Choice, tokens: Tokens) -> None:
    """Add tokens to a choice that is not streamed."""
    addition = choice.take(tokens)
    if addition is None:
        return
    gathered.parts.append(addition)
    gathered.ids.extend(addition.ids)
    gathered.offsets.extend(addition.offsets)
    gathered.logprobs.extend(addition.logprobs or ())
    last = gathered.origins[-1] if gathered.origins else None
    if last is not None and (last.role, last.instance) == (tokens.role, tokens.instance):
        last.tokens = (last.tokens or 0) + len(addition.ids)
    else:
        gathered.origins.append(TokenOrigin(tokens.role, tokens.instance, tokens.position, len(addition.ids)))
