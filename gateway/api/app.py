"""The gateway's routes. The streaming endpoints are bare ASGI callables: middleware that wraps responses hides
disconnects and costs more than the rest of a chunk's way."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.api.chat import prepare_chat
from gateway.api.completions import prepare_completion
from gateway.api.endpoint import Access, GenerationEndpoint, Limits, Prepare
from gateway.api.errors import ApiError, encode_error, error_headers, from_generation
from gateway.api.forms import ChatForm, CompletionForm, Form
from gateway.api.models import Models
from gateway.api.passing import Passing
from gateway.api.wire import encode
from gateway.relay.types import GenerationFailed, Generator
from gateway.text.model import ServedModel
from policies.tenant_rules import ModelRules

Handler = Callable[[Request], Awaitable[Response]]
JSON = "application/json"


async def _show_nothing() -> Mapping[str, Any]:
    return {}


@dataclass(frozen=True, slots=True)
class ApiState:
    """What the API needs of the rest of the gateway."""

    models: Mapping[str, ServedModel]
    generator: Generator
    created: int
    """Unix time that ``/v1/models`` shows."""
    access: Access
    find_missing: Callable[[], Sequence[str]]
    """Return what is not ready, one line each; nothing when requests can be served."""
    find_timeline: Callable[[str], Mapping[str, Any] | None]
    """Return a request's timeline as JSON values."""
    render_metrics: Callable[[], tuple[bytes, str]]
    """Return the metrics page and its content type."""
    limits: Limits = field(default_factory=Limits)
    show_rules: Callable[[], Awaitable[Mapping[str, Any]]] = field(default=_show_nothing)
    """Return which rules are in force here, and what other processes say, as JSON values."""
    passing: Passing | None = None
    """Serves the models of upstreams; None: there are none."""


def build_app(state: ApiState, routes: Sequence[Route] = ()) -> Starlette:
    """Return the ASGI application; ``routes`` are added to the API's own."""
    models = Models(state.models, state.created, state.passing.models if state.passing else tuple)

    def endpoint(path: str, prepare: Prepare, form: Form) -> Route:
        served = GenerationEndpoint(
            prepare, form, models, state.generator, state.access, state.limits, path, state.passing
        )
        return Route(path, served, methods=["POST"])

    app = Starlette(
        routes=[
            endpoint("/v1/chat/completions", prepare_chat, ChatForm()),
            endpoint("/v1/completions", prepare_completion, CompletionForm()),
            *model_routes(models, state),
            *operator_routes(state),
            *routes,
        ],
        exception_handlers={
            ApiError: answer_api_error,
            GenerationFailed: answer_refusal,
            HTTPException: answer_http_error,
            Exception: answer_failure,
        },
    )
    # A path that is not exactly a route is no route: nothing is checked at one spelling and served at another.
    app.router.redirect_slashes = False
    return app


def model_routes(models: Models, state: ApiState) -> list[Route]:
    """Return ``/v1/models`` and ``/v1/models/{id}``, with what the caller may ask for."""

    def rules_for(request: Request) -> ModelRules:
        tenant = state.access.identify(request)
        return state.access.rules_of(tenant, "").models

    async def list_models(request: Request) -> Response:
        return Response(encode(models.list(rules_for(request))), media_type=JSON)

    async def show_model(request: Request) -> Response:
        return Response(encode(models.card(request.path_params["name"], rules_for(request))), media_type=JSON)

    return [
        Route("/v1/models", list_models, methods=["GET"]),
        Route("/v1/models/{name:path}", show_model, methods=["GET"]),
    ]


def operator_routes(state: ApiState) -> list[Route]:
    """Return ``/health``, ``/ready``, ``/metrics``, ``/admin/requests/{id}`` and ``/admin/rules``."""

    async def show_health(request: Request) -> Response:
        return Response(b'{"status":"ok"}', media_type=JSON)

    async def show_ready(request: Request) -> Response:
        missing = list(state.find_missing())
        body = msgspec.json.encode({"ready": not missing, "missing": missing})
        return Response(body, status_code=503 if missing else 200, media_type=JSON)

    async def show_metrics(request: Request) -> Response:
        page, content_type = state.render_metrics()
        return Response(page, headers={"content-type": content_type})

    async def show_request(request: Request) -> Response:
        timeline = state.find_timeline(request.path_params["request_id"])
        if timeline is None:
            raise ApiError(404, "No request with this id is remembered.", code="request_not_found")
        return Response(msgspec.json.encode(timeline), media_type=JSON)

    async def show_rules(request: Request) -> Response:
        return Response(msgspec.json.encode(await state.show_rules()), media_type=JSON)

    return [
        Route("/health", show_health, methods=["GET"]),
        Route("/ready", show_ready, methods=["GET"]),
        Route("/metrics", show_metrics, methods=["GET"]),
        Route("/admin/requests/{request_id}", show_request, methods=["GET"]),
        Route("/admin/rules", show_rules, methods=["GET"]),
    ]


async def answer_api_error(request: Request, error: Exception) -> Response:
    """Answer an error of our own."""
    assert isinstance(error, ApiError)
    return to_response(error)


async def answer_refusal(request: Request, error: Exception) -> Response:
    """Answer a caller who may not ask."""
    assert isinstance(error, GenerationFailed)
    return to_response(from_generation(error))


async def answer_http_error(request: Request, error: Exception) -> Response:
    """Answer starlette's own errors: unknown paths and methods."""
    assert isinstance(error, HTTPException)
    messages = {404: "There is nothing at this path.", 405: "This path does not know this method."}
    message = messages.get(error.status_code, error.detail)
    return to_response(ApiError(error.status_code, message, headers=dict(error.headers or {})))


async def answer_failure(request: Request, error: Exception) -> Response:
    """Answer a failure of ours; the server logs it."""
    return to_response(ApiError(500, "The gateway failed to handle this request."))


def to_response(error: ApiError) -> Response:
    """Return an error as a response."""
    return Response(encode_error(error), error.status, error_headers(error), JSON)
