"""The gateway's routes. The streaming endpoints are bare ASGI callables: middleware that wraps responses hides
disconnects and costs more than the rest of a chunk's way."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.api.admin import Pages, admin_routes, probe_routes
from gateway.api.chat import prepare_chat
from gateway.api.choices import ChatFormat, CompletionFormat
from gateway.api.completions import prepare_completion
from gateway.api.count_tokens import PATH as COUNT_PATH
from gateway.api.count_tokens import CountTokensEndpoint
from gateway.api.endpoint import Access, GenerationApi, GenerationEndpoint, NamePrompt, RequestLimits
from gateway.api.messages import prepare_messages, translate_messages
from gateway.api.messages_answer import MessagesShape
from gateway.api.models import Models
from gateway.api.outside import OverflowAnswers, Passthrough
from gateway.api.respond import OpenAiShape
from gateway.api.responses import prepare_response, translate_response
from gateway.api.responses_answer import ResponsesShape
from gateway.api.stored import ResponseMemory, stored_routes
from gateway.api.wire import encode_json
from gateway.auth.admin import AdminAuth
from gateway.fleet.reading import Readings
from gateway.http.routing import JSON, assemble
from gateway.relay.types import Generator
from gateway.text.model import ServedModel
from gateway.text.turns import TurnMemory
from policies.tenant_rules import ModelRules

CHAT = GenerationApi("/v1/chat/completions", prepare_chat, OpenAiShape(ChatFormat()))
COMPLETIONS = GenerationApi("/v1/completions", prepare_completion, OpenAiShape(CompletionFormat()))
MESSAGES = GenerationApi("/v1/messages", prepare_messages, MessagesShape(), translate_messages)
RESPONSES = GenerationApi("/v1/responses", prepare_response, ResponsesShape(), translate_response)


@dataclass(frozen=True, slots=True)
class ApiState:
    """What the API needs of the rest of the gateway."""

    models: Mapping[str, ServedModel]
    generator: Generator
    created: int
    """Unix time that ``/v1/models`` shows."""
    access: Access
    pages: Pages
    limits: RequestLimits = field(default_factory=RequestLimits)
    admin_auth: AdminAuth = field(default_factory=AdminAuth)
    """Who may see the operator's pages beside the API."""
    passing: Passthrough | None = None
    """Serves the models of upstreams; None: there are none."""
    overflow: OverflowAnswers | None = None
    """Lets external providers answer chats; None: there are none."""
    readings: Readings | None = None
    """Lets engines read chats; None: all are read here."""
    note_unread: Callable[[str], object] = str
    """Is told the model when a conversation holds a tool call whose arguments cannot be read."""
    responses: ResponseMemory = field(default_factory=ResponseMemory)
    """What is kept of responses."""
    name_prompt: NamePrompt | None = None
    """Is told of each prompt before its answer is planned."""
    turns: TurnMemory = field(default_factory=TurnMemory)
    """The exact ids of conversations' turns."""
    note_turn: Callable[[str, str], object] = lambda model, result: None
    """Is told the model and what came of the ids of a conversation's earlier turns."""


def build_app(state: ApiState, routes: Sequence[Route] = ()) -> Starlette:
    """Return the ASGI application; ``routes`` are added to the API's own."""
    passed = state.passing.models if state.passing else tuple
    models = Models(
        state.models, state.created, passed, state.note_unread, state.readings, state.note_turn, state.turns
    )

    def endpoint(
        api: GenerationApi, overflow: OverflowAnswers | None = None, memory: ResponseMemory | None = None
    ) -> Route:
        served = GenerationEndpoint(
            api, models, state.generator, state.access, state.limits, state.passing, overflow, memory, state.name_prompt
        )
        return Route(api.path, served, methods=["POST"])

    return assemble(
        [
            endpoint(CHAT, state.overflow),
            endpoint(COMPLETIONS),
            endpoint(MESSAGES),
            endpoint(RESPONSES, memory=state.responses),
            *stored_routes(state.responses, state.access.identify),
            Route(COUNT_PATH, CountTokensEndpoint(models, state.access, state.limits, state.passing), methods=["POST"]),
            *model_routes(models, state),
            *probe_routes(state.pages, state.admin_auth),
            *admin_routes(state.pages, state.admin_auth),
            *routes,
        ]
    )


def build_admin_app(pages: Pages, admin_auth: AdminAuth, routes: Sequence[Route] = ()) -> Starlette:
    """Return the ASGI application of a listener that is the operator's alone; ``routes`` are added to its own."""
    return assemble([*probe_routes(pages, admin_auth), *admin_routes(pages, admin_auth), *routes])


def model_routes(models: Models, state: ApiState) -> list[Route]:
    """Return ``/v1/models`` and ``/v1/models/{id}``, with what the caller may ask for."""

    def rules_for(request: Request) -> ModelRules:
        tenant = state.access.identify(request)
        return state.access.rules_of(tenant, "").models

    async def list_models(request: Request) -> Response:
        return Response(encode_json(models.list(rules_for(request))), media_type=JSON)

    async def show_model(request: Request) -> Response:
        return Response(encode_json(models.card(request.path_params["name"], rules_for(request))), media_type=JSON)

    return [
        Route("/v1/models", list_models, methods=["GET"]),
        Route("/v1/models/{name:path}", show_model, methods=["GET"]),
    ]
