"""Chats that an external provider answers in place of the model's own engines, in the gateway's own wire shape."""

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import orjson

from backends.engines.external import ExternalChunk, ExternalModel, ExternalUsage, Provider
from backends.errors import BackendError, EngineRejected, EngineTimeout, EngineUnavailable
from gateway.api.outside import Outside
from gateway.api.prepare import PreparedRequest
from gateway.errors import GatewayError, RawHeaders, encode_error
from gateway.fleet.pools import Pools
from gateway.http.body import JsonObject
from gateway.http.client import Client
from gateway.passthrough.record import Spending
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.timeline import Timelines
from policies.route import choose_overflow
from policies.rules import NO_SLO, Rules

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class OverflowService:
    """See ``gateway.api.outside.OverflowAnswers``. ``models`` are those that the settings know, by LiteLLM's names."""

    provider: Provider | None
    models: Mapping[str, ExternalModel]
    pools: Pools
    timelines: Timelines
    metrics: Metrics

    def choose(self, model: str, rules: Rules, *, refused: bool) -> Outside | None:
        """Say who answers in place of the engines; None: nobody."""
        named = self.models.get(rules.overflow.model or "")
        if self.provider is None or named is None:
            return None
        reason = choose_overflow(self.pools.views(model), rules, refused=refused)
        return None if reason is None else Outside(named.model, reason)

    async def answer(
        self,
        outside: Outside,
        prepared: PreparedRequest,
        value: JsonObject,
        client: Client,
        headers: RawHeaders,
        note: Callable[[ExternalUsage | None, bool | None], None],
    ) -> None:
        """Answer from outside. Raises GatewayError while nothing was sent."""
        assert self.provider is not None
        request = prepared.requests[0]
        timeline = self.timelines.open(prepared.id, prepared.model.name, request.trace)
        slo = request.rules.slo if request.rules is not None else NO_SLO
        spending = Spending(timeline, self.metrics, outside, slo, request.waited_s)
        chunks = self.provider.chat(self.models[outside.model], value, stream=prepared.stream)
        lines: RawHeaders = [
            (b"x-request-id", prepared.id.encode()),
            (b"x-pdd-plan", b"external"),
            (b"x-pdd-reason", outside.reason.encode()),
            *headers,
        ]
        try:
            async with aclosing(chunks):
                if prepared.stream:
                    await _write_stream(chunks, prepared, client, lines, spending)
                else:
                    await _write_whole(chunks, prepared, client, lines, spending)
        except BackendError as error:
            spending.failed(error)
            raise to_failure(error) from error
        finally:
            spending.close()
            note(spending.usage, spending.slo_met)


def to_failure(error: BackendError) -> GatewayError:
    """Return the client's view of a provider's failure."""
    match error:
        case EngineRejected():
            return GatewayError(error.status, error.message, param=error.param)
        case EngineUnavailable():
            message = "The external provider cannot take the request now."
            return GatewayError(503, message, retry_after_s=error.retry_after_s or 1.0)
        case EngineTimeout():
            return GatewayError(504, "The external provider did not answer in time.")
    return GatewayError(502, "The external provider failed.")


async def _write_stream(
    chunks: AsyncGenerator[ExternalChunk, None],
    prepared: PreparedRequest,
    client: Client,
    headers: RawHeaders,
    spending: "Spending",
) -> None:
    first = await anext(chunks, None)
    lines = [*headers, (b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
    lines.append((b"x-accel-buffering", b"no"))
    await client.send({"type": "http.response.start", "status": 200, "headers": lines})
    data = b""
    try:
        if first is not None:
            await _send_chunk(first, prepared, client, spending)
        async for chunk in chunks:
            await _send_chunk(chunk, prepared, client, spending)
        spending.finished()
        if prepared.include_usage and spending.usage is not None:
            data = _event(prepared, [], _usage(spending.usage))
        data += DONE
    except BackendError as error:
        spending.failed(error)
        data = b"data: " + encode_error(to_failure(error)) + b"\n\n"
    await client.send({"type": "http.response.body", "body": data, "more_body": False})


async def _send_chunk(chunk: ExternalChunk, prepared: PreparedRequest, client: Client, spending: "Spending") -> None:
    spending.take(chunk)
    if chunk.choices:
        choices = [{"finish_reason": None} | dict(choice) for choice in chunk.choices]
        data = _event(prepared, choices, None)
        await client.send({"type": "http.response.body", "body": data, "more_body": True})


async def _write_whole(
    chunks: AsyncGenerator[ExternalChunk, None],
    prepared: PreparedRequest,
    client: Client,
    headers: RawHeaders,
    spending: "Spending",
) -> None:
    choices: list[Mapping[str, Any]] = []
    async for chunk in chunks:
        spending.take(chunk)
        choices += chunk.choices
    spending.finished()
    answer = _envelope(prepared, "chat.completion", choices)
    answer["usage"] = None if spending.usage is None else _usage(spending.usage)
    body = orjson.dumps(answer)
    lines = [*headers, (b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await client.send({"type": "http.response.start", "status": 200, "headers": lines})
    await client.send({"type": "http.response.body", "body": body, "more_body": False})


def _event(prepared: PreparedRequest, choices: list[Any], usage: Mapping[str, Any] | None) -> bytes:
    chunk = _envelope(prepared, "chat.completion.chunk", choices)
    if prepared.include_usage:
        chunk["usage"] = usage
    return b"data: " + orjson.dumps(chunk) + b"\n\n"


def _envelope(prepared: PreparedRequest, kind: str, choices: list[Any]) -> dict[str, Any]:
    return {
        "id": prepared.id,
        "object": kind,
        "created": prepared.created,
        "model": prepared.model_name,
        "choices": choices,
    }


def _usage(usage: ExternalUsage) -> dict[str, int]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
