"""Writes an answer as it comes, or whole.

The status line waits for the first event: what fails before it is a JSON error with its own status, what fails after it
is an SSE error event without [DONE]. Each event is one write.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from msgspec import UNSET

from gateway.api.choice import Choice, count_cached
from gateway.api.formats import AnswerFormat, Gathered
from gateway.api.prepare import PreparedRequest
from gateway.api.wire import (
    AnswerBody,
    ChatChunkChoice,
    PromptTokensDetails,
    TokenOrigin,
    UsageBody,
    encode,
    encode_event,
)
from gateway.errors import GatewayError, RawHeaders, encode_error
from gateway.http.client import Client
from gateway.relay.types import Answer, AnswerEvent, Finish, KeepAlive, Tokens

QUEUED_EVENTS = 4
Numbered = tuple[int, AnswerEvent]


DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
Events = AsyncGenerator[Numbered, None]


def unfinished() -> GatewayError:
    """Return the failure of an answer that ended without a finish."""
    return GatewayError(502, "The answer ended before it was finished.", code="bad_gateway")


def count_usage(job: PreparedRequest, choices: Sequence[Choice]) -> UsageBody:
    """Return the request's usage: each prompt once, the completions of all choices."""
    prompt = job.prompt_tokens
    completion = sum(choice.completion_tokens for choice in choices)
    cached = count_cached(choices, job.n)
    details = None if cached is None else PromptTokensDetails(cached)
    return UsageBody(prompt, completion, prompt + completion, details)


class StreamWriter:
    """Turns one request's events into SSE bytes. No I/O."""

    def __init__(self, job: PreparedRequest, form: AnswerFormat, choices: Sequence[Choice]) -> None:
        self._job = job
        self._form = form
        self._choices = choices
        self._opened = [False] * len(choices)
        self._running = len(choices)

    def write(self, index: int, event: Tokens | Finish | KeepAlive) -> bytes:
        """Return the bytes of one event; none for ids that are no text yet."""
        match event:
            case KeepAlive():
                return KEEP_ALIVE
            case Tokens():
                return self._open(index) + self._add(index, event)
            case Finish():
                return self._open(index) + self._end(index, event)

    def end(self) -> bytes:
        """Return what follows the last choice's finish. Raises GatewayError when there was none."""
        if self._running:
            raise unfinished()
        if not self._job.include_usage:
            return DONE
        return encode_event(self._answer([], usage=count_usage(self._job, self._choices))) + DONE

    def _open(self, index: int) -> bytes:
        if self._opened[index]:
            return b""
        self._opened[index] = True
        choice = self._form.open(self._job, index)
        if choice is None:
            return b""
        answer = self._answer([choice])
        if isinstance(choice, ChatChunkChoice) and self._job.return_token_ids:
            answer.prompt_token_ids = list(self._job.prompts[index // self._job.n])
        return encode_event(answer)

    def _add(self, index: int, event: Tokens) -> bytes:
        addition = self._choices[index].take(event)
        job = self._job
        if addition is None:
            return b""
        parts = addition.parts
        if not (parts.content or parts.reasoning or parts.calls or job.shows_ids):
            return b""
        answer = self._answer([self._form.add(job, index, addition)])
        if job.traced:
            answer.pdd = TokenOrigin(event.role, event.instance, event.position)
        return encode_event(answer)

    def _end(self, index: int, finish: Finish) -> bytes:
        self._running -= 1
        ending = self._choices[index].end(finish)
        return encode_event(self._answer([self._form.end(self._job, index, ending)]))

    def _answer(self, choices: list[Any], usage: UsageBody | None = None) -> AnswerBody:
        job = self._job
        answer = AnswerBody(job.id, self._form.chunk_object, job.created, job.model_name, choices)
        if job.continuous_usage:
            answer.usage = count_usage(job, self._choices)
        elif job.include_usage:
            answer.usage = usage
        return answer


async def write_stream(client: Client, events: Events, writer: StreamWriter, headers: RawHeaders) -> None:
    """Stream the answer. Raises GatewayError while nothing was sent; later failures become an error event."""
    first = await anext(events, None)
    if first is None:
        raise unfinished()
    lines = [*headers, (b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
    lines.append((b"x-accel-buffering", b"no"))
    data = writer.write(*first)
    await client.send({"type": "http.response.start", "status": 200, "headers": lines})
    try:
        if data:
            await client.send({"type": "http.response.body", "body": data, "more_body": True})
        async for index, event in events:
            data = writer.write(index, event)
            if data:
                await client.send({"type": "http.response.body", "body": data, "more_body": True})
        data = writer.end()
    except GatewayError as failure:
        data = b"data: " + encode_error(failure) + b"\n\n"
    await client.send({"type": "http.response.body", "body": data, "more_body": False})


async def write_whole(
    client: Client,
    events: Events,
    job: PreparedRequest,
    form: AnswerFormat,
    choices: Sequence[Choice],
    headers: RawHeaders,
) -> None:
    """Send the answer when it is complete. Raises GatewayError."""
    gathered = [Gathered() for _ in choices]
    done: dict[int, Any] = {}
    async for index, event in events:
        match event:
            case Tokens():
                gather(gathered[index], choices[index], event)
            case Finish():
                done[index] = form.whole(job, index, gathered[index], choices[index].end(event))
            case KeepAlive():
                pass
    if len(done) < len(choices):
        raise unfinished()
    answer = AnswerBody(job.id, form.whole_object, job.created, job.model_name, [done[index] for index in sorted(done)])
    answer.usage = count_usage(job, choices)
    if job.return_token_ids and form.whole_object == "chat.completion":
        answer.prompt_token_ids = list(job.prompts[0])
    answer.pdd = [origin for part in gathered for origin in part.origins] if job.traced else UNSET
    body = encode(answer)
    lines = [*headers, (b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await client.send({"type": "http.response.start", "status": 200, "headers": lines})
    await client.send({"type": "http.response.body", "body": body, "more_body": False})


def gather(gathered: Gathered, choice: Choice, event: Tokens) -> None:
    """Add one event to a choice that is not streamed."""
    addition = choice.take(event)
    if addition is None:
        return
    gathered.parts.append(addition.parts)
    gathered.ids.extend(addition.ids)
    gathered.offsets.extend(addition.offsets)
    gathered.logprobs.extend(addition.logprobs or ())
    last = gathered.origins[-1] if gathered.origins else None
    if last is not None and (last.role, last.instance) == (event.role, event.instance):
        last.tokens = (last.tokens or 0) + len(addition.ids)
    else:
        gathered.origins.append(TokenOrigin(event.role, event.instance, event.position, len(addition.ids)))


def merge(answers: Sequence[Answer]) -> AsyncGenerator[Numbered, None]:
    """Yield (choice, event), in order for each choice, until all ended. Raises the first GatewayError."""
    return follow(answers[0]) if len(answers) == 1 else interleave(answers)


async def follow(answer: Answer) -> AsyncGenerator[Numbered, None]:
    """Yield a single answer's events."""
    async for event in answer:
        yield 0, event


async def interleave(answers: Sequence[Answer]) -> AsyncGenerator[Numbered, None]:
    """Yield several answers' events as they come; no answer runs far ahead of a client that reads slowly."""
    queue: asyncio.Queue[Numbered | int] = asyncio.Queue()
    room = [asyncio.Semaphore(QUEUED_EVENTS) for _ in answers]

    async def pump(index: int) -> None:
        async for event in answers[index]:
            await room[index].acquire()
            queue.put_nowait((index, event))

    pumps = [asyncio.create_task(pump(index)) for index in range(len(answers))]
    places = {task: index for index, task in enumerate(pumps)}
    for task in pumps:
        task.add_done_callback(lambda ended: queue.put_nowait(places[ended]))
    try:
        running = len(pumps)
        while running:
            entry = await queue.get()
            if isinstance(entry, int):
                running -= 1
                await pumps[entry]
            else:
                room[entry[0]].release()
                yield entry
    finally:
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
