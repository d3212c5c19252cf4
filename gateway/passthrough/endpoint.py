"""The endpoints that only pass on, and what the generating ones ask of this package."""

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import orjson
from starlette.datastructures import Headers
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from gateway.api.body import ClientGone, ClientStalled, JsonObject, read_body
from gateway.api.client import Client, send_whole
from gateway.api.edge import cut_connection
from gateway.api.endpoint import Limits, check_header_size, parse, read_headers, send_error
from gateway.api.errors import ApiError, bad_field, from_generation
from gateway.api.fields import refuse_internal
from gateway.api.models import no_such_model
from gateway.api.passing import AnswerBroken
from gateway.passthrough.forward import PassedRequest, pass_on
from gateway.passthrough.headers import pick_request_headers
from gateway.passthrough.multipart import BadForm, read_form, write_form
from gateway.passthrough.paths import PASSED_PATHS, Form
from gateway.passthrough.record import PassRecord
from gateway.passthrough.servers import Servers
from gateway.relay.types import GenerationFailed
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.timeline import Timelines

JSON = "application/json"


@dataclass(frozen=True, slots=True)
class Passing:
    """Passes requests on; see ``gateway.api.passing.Passing``."""

    servers: Servers
    timelines: Timelines
    metrics: Metrics

    def models(self) -> list[str]:
        """Names of the models whose every request is passed on."""
        return self.servers.models()

    def passes(self, model: object) -> bool:
        """Say whether every request for a model is passed on."""
        return self.servers.passes(model)

    async def pass_object(self, path: str, value: JsonObject, headers: Headers, client: Client) -> None:
        """Pass a parsed body on, written anew. Raises ApiError, AnswerBroken."""
        model = find_model(value.get("model"))
        refuse_internal(value)
        request_id = f"req-{uuid.uuid4().hex}"
        picked = pick_request_headers(headers, JSON, request_id)
        await self._pass_on(PassedRequest(request_id, path, model, orjson.dumps(value), picked), client)

    async def pass_form(self, path: str, body: bytes, headers: Headers, client: Client) -> None:
        """Pass a form on, written anew. Raises ApiError, AnswerBroken."""
        try:
            parts = read_form(body, headers.get("content-type", ""))
        except BadForm as error:
            raise bad_field(None, str(error)) from error
        named = [part for part in parts if part.name == "model"]
        if len(named) > 1:
            raise bad_field("model", "The field 'model' is given more than once.", "duplicate_field")
        model = find_model(named[0].content.decode("utf-8", "replace") if named else None)
        refuse_internal(part.name for part in parts)
        request_id = f"req-{uuid.uuid4().hex}"
        data, content_type = write_form(parts)
        picked = pick_request_headers(headers, content_type, request_id)
        await self._pass_on(PassedRequest(request_id, path, model, data, picked), client)

    async def _pass_on(self, request: PassedRequest, client: Client) -> None:
        servers = self.servers
        if not servers.offers(request.model, request.path):
            if not servers.passes(request.model) and request.model not in servers.own_models:
                raise no_such_model(request.model)
            message = f"The model {request.model!r} is not served at {request.path}."
            raise ApiError(404, message, code="unsupported_path", param="model")
        with self._recorded(request) as record:
            await pass_on(request, servers, client, record)

    @contextmanager
    def _recorded(self, request: PassedRequest) -> Iterator[PassRecord]:
        record = PassRecord(self.timelines.open(request.id, request.model), self.metrics, request.path)
        try:
            yield record
        except ApiError:
            record.failed()
            raise
        finally:
            record.close()


def find_model(value: object) -> str:
    """Return the model's name as the client gave it. Raises ApiError."""
    if value is None:
        raise bad_field("model", "The field 'model' is required.", "missing_field")
    if not isinstance(value, str):
        raise bad_field("model", "model must be a string.", "invalid_type")
    return value


class PassEndpoint:
    """One path that only passes on, as a bare ASGI callable."""

    def __init__(
        self, path: str, form: Form, passing: Passing, identify: Callable[[Headers], str], limits: Limits
    ) -> None:
        self._path = path
        self._form = form
        self._passing = passing
        self._identify = identify
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request to its end."""
        if scope.get("http_version") == "1.0":
            send = send_whole(send)
        try:
            check_header_size(scope)
            headers = Headers(scope=scope)
            read_headers(headers, self._identify)
            body = await read_body(scope, receive, self._limits.body_bytes, self._limits.body_timeout_s)
            async with Client(receive, send, self._limits.write_timeout_s) as client:
                if self._form == "multipart":
                    await self._passing.pass_form(self._path, body, headers, client)
                else:
                    await self._passing.pass_object(self._path, await parse(body), headers, client)
        except (ClientStalled, AnswerBroken):
            cut_connection(scope)
        except ClientGone:
            pass
        except ApiError as error:
            await send_error(send, error, f"req-{uuid.uuid4().hex}")
        except GenerationFailed as failure:
            await send_error(send, from_generation(failure), f"req-{uuid.uuid4().hex}")


def pass_routes(passing: Passing, identify: Callable[[Headers], str], limits: Limits) -> list[Route]:
    """Return the routes of the paths that only pass on."""
    return [
        Route(path, PassEndpoint(path, form, passing, identify, limits), methods=["POST"])
        for path, form in PASSED_PATHS.items()
    ]
