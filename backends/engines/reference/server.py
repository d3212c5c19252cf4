"""The engine's HTTP API. The completion endpoint is plain ASGI, so that a closed connection is seen at once."""

import asyncio
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from backends.engines.reference.answer import AnswerWriter
from backends.engines.reference.core import ReferenceEngine
from backends.engines.reference.events import SourceCard
from backends.engines.reference.generation import EngineDead, Generation, Output
from backends.engines.reference.metrics import EngineMetrics
from backends.engines.reference.sequence import Params
from backends.engines.reference.text import Text, TokenizerMissing
from backends.engines.reference.wire import (
    BadRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
    check_ids,
    check_supported,
    decode,
    to_params,
)

MAX_BODY_BYTES = 64 << 20
DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Served:
    """What the endpoints tell of the model, and how long a stream's end waits for the store."""

    model: str
    context_tokens: int
    vocab_tokens: int
    eos_token_ids: frozenset[int]
    started_s: int
    stored_timeout_s: float = 30.0
    event_source: SourceCard | None = None


class ReferenceServer:
    """Endpoints over one engine."""

    def __init__(self, engine: ReferenceEngine, text: Text, metrics: EngineMetrics, served: Served) -> None:
        self._engine = engine
        self._text = text
        self._metrics = metrics
        self._served = served

    def app(self) -> Starlette:
        """The ASGI application; the engine is started and stopped by whoever serves it."""
        return Starlette(
            routes=[
                Route("/v1/completions", _Completions(self.complete), methods=["POST"]),
                Route("/v1/models", self.models),
                Route("/tokenize", self.tokenize, methods=["POST"]),
                Route("/detokenize", self.detokenize, methods=["POST"]),
                Route("/reset_prefix_cache", self.reset_prefix_cache, methods=["POST"]),
                Route("/kv_event_sources", self.kv_event_sources),
                Route("/health", self.health),
                Route("/metrics", self.metrics),
            ],
            exception_handlers={BadRequest: _bad_request, HTTPException: _http_error},
        )

    async def complete(self, scope: Scope, receive: Receive, send: Send) -> None:
        """``POST /v1/completions``."""
        try:
            body = await _read_body(receive)
            if body is None:
                return
            request = decode(body, CompletionRequest)
            self._check_model(request.model)
            prompt, params = await self._check(request)
        except BadRequest as error:
            await _json(error.body(), error.status)(scope, receive, send)
            return
        if not self._engine.alive:
            await _json(_failure("the engine has stopped"), 503)(scope, receive, send)
            return
        generation = self._engine.submit(_request_id(scope), prompt, params)
        answer = AnswerWriter(request, generation.sequence, self._text, self._served.model, int(time.time()))
        watch = asyncio.create_task(_abort_on_disconnect(receive, generation))
        try:
            if request.stream:
                await self._stream(request, generation, answer, send)
            else:
                await self._whole(generation, answer, scope, receive, send)
        finally:
            generation.abort()
            watch.cancel()

    async def models(self, _: Request) -> Response:
        """``GET /v1/models``."""
        served = self._served
        card = {
            "id": served.model,
            "object": "model",
            "created": served.started_s,
            "owned_by": "pdd",
            "root": served.model,
            "parent": None,
            "max_model_len": served.context_tokens,
        }
        return _json({"object": "list", "data": [card]})

    async def tokenize(self, request: Request) -> Response:
        """``POST /tokenize``."""
        wanted = decode(await request.body(), TokenizeRequest)
        self._check_model(wanted.model)
        ids = await asyncio.to_thread(self._encode, wanted.prompt, wanted.add_special_tokens)
        return _json({"count": len(ids), "max_model_len": self._served.context_tokens, "tokens": ids})

    async def detokenize(self, request: Request) -> Response:
        """``POST /detokenize``."""
        wanted = decode(await request.body(), DetokenizeRequest)
        self._check_model(wanted.model)
        ids = check_ids(wanted.tokens, self._served.vocab_tokens, "tokens")
        try:
            return _json({"prompt": self._text.decode(ids)})
        except TokenizerMissing as error:
            raise BadRequest("the model has no tokenizer", "tokens") from error

    async def reset_prefix_cache(self, _: Request) -> Response:
        """``POST /reset_prefix_cache``."""
        self._engine.reset_prefix_cache()
        return Response(status_code=200)

    async def kv_event_sources(self, _: Request) -> Response:
        """``GET /kv_event_sources``: by data-parallel rank, empty when no events are published."""
        source = self._served.event_source
        return _json({} if source is None else {"0": msgspec.to_builtins(source)})

    async def health(self, _: Request) -> Response:
        """``GET /health``: 503 once the engine's loop has stopped."""
        return Response(status_code=200 if self._engine.alive else 503)

    async def metrics(self, _: Request) -> Response:
        """``GET /metrics``."""
        return Response(self._metrics.render(), media_type="text/plain; version=0.0.4")

    async def _stream(
        self, request: CompletionRequest, generation: Generation, answer: AnswerWriter, send: Send
    ) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        tail = b""
        try:
            async for outputs in generation.batches():
                await _send_event(send, answer.chunk(outputs))
            if generation.aborted:
                return
            if not await generation.stored(self._served.stored_timeout_s):
                tail = _event(_failure("the KV could not be stored"))
            if request.stream_options is not None and request.stream_options.include_usage:
                tail = _event(answer.usage_chunk()) + tail
        except EngineDead:
            tail = _event(_failure("the engine has stopped"))
        await send({"type": "http.response.body", "body": tail + DONE, "more_body": False})

    async def _whole(
        self, generation: Generation, answer: AnswerWriter, scope: Scope, receive: Receive, send: Send
    ) -> None:
        outputs: list[Output] = []
        try:
            async for batch in generation.batches():
                outputs.extend(batch)
        except EngineDead:
            await _json(_failure("the engine has stopped"), 503)(scope, receive, send)
            return
        if generation.aborted:
            return
        if not await generation.stored(self._served.stored_timeout_s):
            await _json(_failure("the KV could not be stored"), 500)(scope, receive, send)
            return
        await _json(answer.whole(outputs))(scope, receive, send)

    async def _check(self, request: CompletionRequest) -> tuple[list[int], Params]:
        check_supported(request)
        served = self._served
        if isinstance(request.prompt, str):
            prompt = await asyncio.to_thread(self._encode, request.prompt, request.add_special_tokens)
        else:
            prompt = check_ids(_single(request.prompt), served.vocab_tokens, "prompt")
        params = to_params(request, len(prompt), served.context_tokens, served.vocab_tokens, served.eos_token_ids)
        return prompt, params

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        try:
            return self._text.encode(text, add_special_tokens)
        except TokenizerMissing as error:
            raise BadRequest("the model has no tokenizer: send token ids", "prompt") from error

    def _check_model(self, model: str | None) -> None:
        if model is not None and model != self._served.model:
            raise BadRequest(f"The model `{model}` does not exist.", "model", 404)


class _Completions:
    """Keeps Starlette from wrapping the endpoint into a request-response function."""

    def __init__(self, endpoint: Callable[[Scope, Receive, Send], Any]) -> None:
        self._endpoint = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._endpoint(scope, receive, send)


async def _read_body(receive: Receive) -> bytes | None:
    """The request's body; None when the client left before its end. Raises BadRequest."""
    body = bytearray()
    while True:
        message: Message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if len(body) > MAX_BODY_BYTES:
            raise BadRequest("the body is too large", status=413)
        if not message.get("more_body", False):
            return bytes(body)


async def _abort_on_disconnect(receive: Receive, generation: Generation) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    generation.abort()


def _single(prompt: list[Any]) -> list[Any]:
    """The ids of a prompt list; a batch of one is taken, too."""
    if prompt and isinstance(prompt[0], list):
        if len(prompt) > 1:
            raise BadRequest("only one prompt per request is supported", "prompt")
        return list(prompt[0])
    return prompt


def _request_id(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            return f"cmpl-{value.decode('latin-1')[:128]}"
    return f"cmpl-{uuid.uuid4().hex}"


def _event(body: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(body) + b"\n\n"


async def _send_event(send: Send, body: dict[str, Any]) -> None:
    await send({"type": "http.response.body", "body": _event(body), "more_body": True})


def _failure(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "InternalServerError", "param": None, "code": 500}}


def _json(body: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(body), status_code=status, media_type="application/json")


async def _bad_request(_: Request, error: Exception) -> Response:
    if not isinstance(error, BadRequest):
        raise error
    return _json(error.body(), error.status)


async def _http_error(_: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    return _json(BadRequest(error.detail, status=error.status_code).body(), error.status_code)
