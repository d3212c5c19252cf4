"""The two generating endpoints as bare ASGI callables: body in, job, answers, bytes out."""

import asyncio
import re
import uuid
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from gateway.api import errors
from gateway.api.body import ClientGone, ClientStalled, JsonObject, parse_object, read_body
from gateway.api.choice import Choice
from gateway.api.client import Client, send_whole
from gateway.api.edge import cut_connection
from gateway.api.errors import ApiError, error_messages, from_generation
from gateway.api.forms import Form
from gateway.api.job import Caller, Job
from gateway.api.merge import merge
from gateway.api.models import Models
from gateway.api.passing import AnswerBroken, Passing
from gateway.api.respond import StreamWriter, write_stream, write_whole
from gateway.relay.types import Answer, GenerationFailed, Generator

Prepare = Callable[[JsonObject, int, Models, Caller], Awaitable[Job]]
INLINE_BODY_BYTES = 256 << 10
MOST_HEADER_BYTES = 64 << 10
HINT = re.compile(r"[0-9]{1,7}")


@dataclass(frozen=True, slots=True)
class Limits:
    """What one client may ask of the gateway's edge."""

    body_bytes: int = 32 << 20
    body_timeout_s: float = 120.0
    write_timeout_s: float = 60.0
    """A client that takes no bytes for so long is given up."""


class GenerationEndpoint:
    """One of ``/v1/chat/completions`` and ``/v1/completions``."""

    def __init__(
        self,
        prepare: Prepare,
        form: Form,
        models: Models,
        generator: Generator,
        identify: Callable[[Headers], str],
        limits: Limits,
        path: str,
        passing: Passing | None = None,
    ) -> None:
        self._path = path
        self._passing = passing
        self._prepare = prepare
        self._form = form
        self._models = models
        self._generator = generator
        self._identify = identify
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request to its end."""
        answers: list[Answer] = []
        request_id = f"req-{uuid.uuid4().hex}"
        if scope.get("http_version") == "1.0":
            send = send_whole(send)
        try:
            check_header_size(scope)
            caller = read_headers(Headers(scope=scope), self._identify)
            body = await read_body(scope, receive, self._limits.body_bytes, self._limits.body_timeout_s)
            async with Client(receive, send, self._limits.write_timeout_s) as client:
                value = await parse(body)
                if self._passing is not None and self._passing.passes(value.get("model")):
                    await self._passing.pass_object(self._path, value, Headers(scope=scope), client)
                    return
                job = await self._prepare(value, len(body), self._models, caller)
                request_id = job.id
                await self._answer(job, client, answers)
        except (ClientStalled, AnswerBroken):
            cut_connection(scope)
        except ClientGone:
            pass
        except ApiError as error:
            await send_error(send, error, request_id)
        except GenerationFailed as failure:
            await send_error(send, from_generation(failure), request_id)
        finally:
            for answer in answers:
                await answer.aclose()

    async def _answer(self, job: Job, client: Client, answers: list[Answer]) -> None:
        choices: list[Choice] = []
        for index, request in enumerate(job.requests):
            answer = self._generator.generate(request)
            answers.append(answer)
            reader = job.make_reader() if job.make_reader is not None else None
            choices.append(Choice(index, answer, job.model.vocabulary, job.text, reader))
        headers: errors.Headers = [
            (b"x-request-id", job.id.encode()),
            (b"x-pdd-plan", answers[0].plan_name.encode()),
            (b"x-pdd-reason", answers[0].plan_reason.encode()),
        ]
        async with aclosing(merge(answers)) as events:
            if job.stream:
                await write_stream(client, events, StreamWriter(job, self._form, choices), headers)
            else:
                await write_whole(client, events, job, self._form, choices, headers)


def check_header_size(scope: Scope) -> None:
    """Refuse a request whose headers are out of proportion."""
    if sum(len(name) + len(value) for name, value in scope["headers"]) > MOST_HEADER_BYTES:
        raise ApiError(
            431, f"The request's headers are larger than {MOST_HEADER_BYTES} bytes.", code="headers_too_large"
        )


async def parse(body: bytes) -> JsonObject:
    """Parse a body; a large one beside the event loop, which then waits for no more than one step of it."""
    return parse_object(body) if len(body) <= INLINE_BODY_BYTES else await asyncio.to_thread(parse_object, body)


def read_headers(headers: Headers, identify: Callable[[Headers], str]) -> Caller:
    """Return who asks and what the headers say. Raises GenerationFailed for a caller who may not."""
    hint = headers.get("x-pdd-output-tokens", "")
    return Caller(
        tenant=identify(headers),
        traced=headers.get("x-pdd-trace") == "1",
        output_hint_tokens=int(hint) if HINT.fullmatch(hint) else None,
    )


async def send_error(send: Send, error: ApiError, request_id: str) -> None:
    """Answer with an error."""
    for message in error_messages(error, [(b"x-request-id", request_id.encode())]):
        await send(message)
