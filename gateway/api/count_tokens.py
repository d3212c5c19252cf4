"""``POST /v1/messages/count_tokens``: how long a prompt is, as the models' own tokenisers have it."""

from dataclasses import dataclass

from starlette.types import Receive, Scope, Send

from gateway.api.endpoint import Access, ReceivedRequest, RequestLimits, parse, serve_request
from gateway.api.fields import without_internal
from gateway.api.messages import prepare_messages, translate_prompt
from gateway.api.messages_answer import ERRORS
from gateway.api.models import Models, resolve_name
from gateway.api.outside import Passthrough
from gateway.api.wire import encode_json

PATH = "/v1/messages/count_tokens"


@dataclass(frozen=True, slots=True)
class CountTokensEndpoint:
    """Renders and tokenises; no engine is asked. The models of upstreams are asked of those."""

    models: Models
    access: Access
    limits: RequestLimits
    passing: Passthrough | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request to its end."""
        await serve_request(scope, receive, send, self.access, self.limits, self._serve, ERRORS)

    async def _serve(self, asked: ReceivedRequest) -> None:
        size_bytes, admission = len(asked.body), self.access.admission
        rules = self.access.rules_of(asked.tenant, asked.reply.request_id)
        caller = self.access.make_caller(asked.headers, asked.tenant, rules)
        async with admission.turn(asked.tenant, size_bytes):
            value = without_internal(await parse(asked.body), rules.client_fields)
        model = value.get("model")
        if (
            self.passing is not None
            and isinstance(model, str)
            and self.passing.passes(resolve_name(model, rules.models))
        ):
            await self.passing.pass_object(PATH, value, asked.headers, caller, asked.client)
            return
        body = translate_prompt(value) | {"stream": False}
        async with admission.turn(asked.tenant, size_bytes):
            prepared = await prepare_messages(body, size_bytes, self.models, caller)
        data = encode_json({"input_tokens": prepared.prompt_tokens})
        lines = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(data))]
        lines.append((b"x-request-id", asked.reply.request_id.encode()))
        await asked.client.send({"type": "http.response.start", "status": 200, "headers": lines})
        await asked.client.send({"type": "http.response.body", "body": data, "more_body": False})
