"""The endpoints that only pass on, and what the generating ones ask of this package."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import orjson
from starlette.datastructures import Headers
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from gateway.api.endpoint import Access, ReceivedRequest, RequestLimits, parse, serve_request
from gateway.api.fields import find_internal, without_internal
from gateway.api.media import check_media, count_media_bytes
from gateway.api.models import is_allowed, no_such_model, resolve_name
from gateway.api.prepare import Caller, check_prompt_limit
from gateway.config.paths import PASSED_PATHS, SALTED_PATHS, UNSALTED_PATHS, BodyFormat
from gateway.errors import GatewayError, bad_field
from gateway.http.body import JsonObject
from gateway.http.client import Client
from gateway.limits.admission import Admission, AdmissionControl
from gateway.limits.usage import Use, use_of_slo
from gateway.passthrough.forward import PassedRequest, pass_on, pick_request_headers
from gateway.passthrough.multipart import BadForm, read_form, write_form
from gateway.passthrough.record import PassRecord
from gateway.passthrough.servers import Servers
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.timeline import Timelines
from gateway.telemetry.trace import TracedRequest, Tracer
from policies.where import Where

JSON = "application/json"
BYTES_A_TOKEN = 4
"""Guess of a text's tokens where nothing tells them: four bytes each."""
PROMPTS = ("prompt", "input")
"""Fields that may hold token ids."""
TEXTS = ("messages", "prompt", "input")
"""Fields that hold the prompt."""
OUTPUT_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")


@dataclass(frozen=True, slots=True)
class PassthroughService:
    """Passes requests on; see ``gateway.api.outside.Passthrough``."""

    servers: Servers
    timelines: Timelines
    metrics: Metrics
    admission: AdmissionControl
    tracer: Tracer | None = None

    def models(self) -> list[str]:
        """Names of the models whose every request is passed on."""
        return self.servers.models()

    def passes(self, model: object) -> bool:
        """Say whether every request for a model is passed on."""
        return self.servers.passes(model)

    async def pass_object(self, path: str, value: JsonObject, headers: Headers, caller: Caller, client: Client) -> None:
        """Pass a parsed body on, written anew. Raises GatewayError, AnswerBroken."""
        model = find_model(value.get("model"), caller)
        if caller.rules.client_fields.urls == "public":
            check_media(value)
        request_id = f"req-{uuid.uuid4().hex}"
        picked = pick_request_headers(headers, JSON, request_id)
        salt = self._find_salt(path, model, caller)
        body = orjson.dumps(value | {"model": model} | ({} if salt is None else {"cache_salt": salt}))
        check_id_prompts(value, caller)
        most_tokens = find_output_limit(value, caller)
        request = PassedRequest(request_id, path, model, body, picked, Where.of(caller.rules))
        text_bytes = max(0, len(body) - count_media_bytes(value))
        traced = self._trace(model, value, salt, caller)
        await self._pass_on(request, caller, text_bytes // BYTES_A_TOKEN, most_tokens, client, traced)

    async def pass_form(self, path: str, body: bytes, headers: Headers, caller: Caller, client: Client) -> None:
        """Pass a form on, written anew. Raises GatewayError, AnswerBroken."""
        try:
            parts = read_form(body, headers.get("content-type", ""))
        except BadForm as error:
            raise bad_field(None, str(error)) from error
        named = [part for part in parts if part.name == "model"]
        if len(named) > 1:
            raise bad_field("model", "The field 'model' is given more than once.", "duplicate_field")
        model = find_model(named[0].content.decode("utf-8", "replace") if named else None, caller)
        left_out = find_internal((part.name for part in parts), caller.rules.client_fields)
        parts = [part for part in parts if part.name not in left_out]
        if caller.rules.client_fields.urls == "public":
            check_media({part.name: part.content.decode("utf-8", "replace") for part in parts if part.filename is None})
        request_id = f"req-{uuid.uuid4().hex}"
        named[0] = replace(named[0], content=model.encode())
        data, content_type = write_form([named[0] if part.name == "model" else part for part in parts])
        picked = pick_request_headers(headers, content_type, request_id)
        await self._pass_on(
            PassedRequest(request_id, path, model, data, picked, Where.of(caller.rules)),
            caller,
            len(data) // BYTES_A_TOKEN,
            0,
            client,
        )

    def _trace(self, model: str, value: JsonObject, salt: str | None, caller: Caller) -> TracedRequest | None:
        prompt = next((value[name] for name in TEXTS if name in value), None)
        if self.tracer is None or not caller.rules.trace.record or prompt is None:
            return None
        return self.tracer.begin_text(model, caller.tenant, orjson.dumps(prompt), salt)

    def _find_salt(self, path: str, model: str, caller: Caller) -> str | None:
        """The salt, where an engine of the gateway's own takes it. Raises GatewayError where it takes none."""
        salt = caller.salt_of(model) if model in self.servers.own_models else None
        if salt is not None and path in UNSALTED_PATHS:
            whose = "tenants'" if caller.cache_salt is not None else "adapters'"
            message = f"The model {model!r} is not served at {path} while {whose} caches are kept apart."
            raise GatewayError(404, message, code="unsupported_path", param="model")
        return salt if path in SALTED_PATHS else None

    async def _pass_on(
        self,
        request: PassedRequest,
        caller: Caller,
        prompt_tokens: int,
        most_output_tokens: int,
        client: Client,
        traced: TracedRequest | None = None,
    ) -> None:
        servers = self.servers
        if not servers.offers(request.model, request.path):
            if not servers.passes(request.model) and request.model not in servers.own_models:
                raise no_such_model(request.model)
            message = f"The model {request.model!r} is not served at {request.path}."
            raise GatewayError(404, message, code="unsupported_path", param="model")
        tenant, rules = caller.tenant, caller.rules
        # They take no place of the engines' main decode: upstreams have bounds of their own.
        entry = await self.admission.enter(tenant, rules, request.model, prompt_tokens, most_output_tokens, answers=0)
        timeline = self.timelines.open(request.id, request.model, caller.trace)
        if timeline.trace is not None:
            request = replace(request, headers={**request.headers, **timeline.trace.headers()})
        record = PassRecord(timeline, self.metrics, request.path, rules.slo)
        with self._recorded(record, entry, prompt_tokens, traced):
            await pass_on(request, servers, client, record, entry.headers)

    @contextmanager
    def _recorded(
        self,
        record: PassRecord,
        entry: Admission,
        prompt_tokens: int,
        traced: TracedRequest | None,
    ) -> Iterator[None]:
        try:
            yield
        except GatewayError:
            record.failed()
            prompt_tokens = 0
            raise
        finally:
            record.close()
            told = record.usage
            prompt = prompt_tokens if told.prompt_tokens is None else told.prompt_tokens
            completion = told.completion_tokens or 0
            use = use_of_slo(record.slo_met)
            use.add(Use(1, prompt, other_tokens=completion))
            entry.leave(use, prompt + completion)
            if traced is not None:
                record.trace(traced)


def check_id_prompts(value: JsonObject, caller: Caller) -> None:
    """Refuse prompts of token ids that are longer than the tenant's may be; what text amounts to only servers know."""
    for name in PROMPTS:
        given = value.get(name)
        for prompt in given if isinstance(given, list) and given and isinstance(given[0], list) else [given]:
            if isinstance(prompt, list) and prompt and type(prompt[0]) is int:
                check_prompt_limit(len(prompt), name, caller)


def find_output_limit(value: JsonObject, caller: Caller) -> int:
    """Return the longest answer that a body asks for, 0 where it says none. Raises GatewayError beyond the tenant's."""
    most = caller.rules.limits.max_output_tokens
    named: dict[str, int] = {name: value[name] for name in OUTPUT_LIMITS if type(value.get(name)) is int}
    for name, tokens in named.items():
        if most is not None and tokens > most:
            raise bad_field(name, f"{name} may be at most {most}.", "output_limit_exceeded")
    return max(0, 0, *named.values())


def find_model(value: object, caller: Caller) -> str:
    """Return the model that the client's name for it stands for. Raises GatewayError, also where it may not be used."""
    if value is None:
        raise bad_field("model", "The field 'model' is required.", "missing_field")
    if not isinstance(value, str):
        raise bad_field("model", "model must be a string.", "invalid_type")
    model = resolve_name(value, caller.rules.models)
    if not is_allowed(model, caller.rules.models):
        raise no_such_model(value)
    return model


class PassEndpoint:
    """One path that only passes on, as a bare ASGI callable."""

    def __init__(
        self, path: str, form: BodyFormat, passing: PassthroughService, access: Access, limits: RequestLimits
    ) -> None:
        self._path = path
        self._form = form
        self._passing = passing
        self._access = access
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request to its end."""
        await serve_request(scope, receive, send, self._access, self._limits, self._serve)

    async def _serve(self, asked: ReceivedRequest) -> None:
        rules = self._access.rules_of(asked.tenant, "")
        caller = self._access.make_caller(asked.headers, asked.tenant, rules)
        if self._form == "multipart":
            await self._passing.pass_form(self._path, asked.body, asked.headers, caller, asked.client)
        else:
            async with self._access.admission.turn(asked.tenant, len(asked.body)):
                value = without_internal(await parse(asked.body), rules.client_fields)
            await self._passing.pass_object(self._path, value, asked.headers, caller, asked.client)


def pass_routes(passing: PassthroughService, access: Access, limits: RequestLimits) -> list[Route]:
    """Return the routes of the paths that only pass on."""
    return [
        Route(path, PassEndpoint(path, form, passing, access, limits), methods=["POST"])
        for path, form in PASSED_PATHS.items()
    ]
