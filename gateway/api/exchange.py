"""One exchange with a client: who asks and what, and what it is told when its answer does not come."""

import asyncio
import re
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.types import Message, Receive, Scope, Send

from gateway.api.outside import AnswerBroken
from gateway.api.prepare import Caller
from gateway.auth.identify import Identify
from gateway.auth.secrets import Salts
from gateway.errors import GatewayError, encode_error, error_messages
from gateway.http.body import ClientDisconnected, ClientStalled, JsonObject, parse_object, read_body
from gateway.http.client import Client, Clients, ShuttingDown
from gateway.http.edge import cut_connection
from gateway.limits.admission import RANKS, AdmissionControl
from policies.rules import Rules

INLINE_BODY_BYTES = 256 << 10
BREAK_OFF_S = 1.0
"""How long a client may take to take the last words of a gateway that ends."""
HINT = re.compile(r"[0-9]{1,7}")


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """What one client may ask of the gateway's edge."""

    body_bytes: int = 32 << 20
    body_timeout_s: float = 120.0
    write_timeout_s: float = 60.0
    """A client that takes no bytes for so long is given up."""


@dataclass(frozen=True, slots=True)
class Access:
    """Who may ask, under which rules, and when."""

    identify: Identify
    rules_of: Callable[[str, str], Rules]
    """Return the rules in force for a tenant's request or session, named by a key. Raises GatewayError."""
    salts: Salts
    gate: AdmissionControl
    shows_plans: bool = False
    """Whether answers tell how they were made, whatever the rules say."""
    clients: Clients = field(default_factory=Clients)
    """Whose answers run."""

    def make_caller(self, headers: Headers, tenant: str, rules: Rules) -> Caller:
        """Return who asks, under which rules, and what the headers say."""
        debug = rules.debug or self.shows_plans
        hint = headers.get("x-pdd-output-tokens", "")
        return Caller(
            tenant=tenant,
            rules=rules,
            cache_salt=self.salts.of(tenant, rules.cache.group),
            priority=RANKS[rules.priority],
            debug=debug,
            traced=debug and headers.get("x-pdd-trace") == "1",
            output_hint_tokens=int(hint) if HINT.fullmatch(hint) else None,
        )


@dataclass(slots=True)
class ErrorReply:
    """Where errors go, and the request's name on them. Whoever answers may give it a better name."""

    send: Send
    request_id: str

    async def fail(self, error: GatewayError) -> None:
        """Answer with an error."""
        for message in error_messages(error, [(b"x-request-id", self.request_id.encode())]):
            await self.send(message)


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that came whole, and from whom."""

    tenant: str
    headers: Headers
    body: bytes
    client: Client
    reply: ErrorReply


async def hold_exchange(
    scope: Scope,
    receive: Receive,
    send: Send,
    access: Access,
    limits: RequestLimits,
    answer: Callable[[Asked], Awaitable[None]],
) -> None:
    """Take a request, let ``answer`` serve it to its end, and tell the client what it raises.

    ``answer`` may raise GatewayError while nothing was sent, and AnswerBroken after that.
    """
    reply = ErrorReply(send, f"req-{uuid.uuid4().hex}")
    client = Client(receive, reply.send, limits.write_timeout_s)
    try:
        if access.clients.is_over:
            raise shutting_down()
        connection = HTTPConnection(scope)
        tenant = access.identify(connection)
        body = await read_body(scope, receive, limits.body_bytes, limits.body_timeout_s)
        if access.clients.is_over:
            # The cut came before there was a client to tell of it.
            raise shutting_down()
        async with client:
            with access.clients.holding(client):
                await answer(Asked(tenant, connection.headers, body, client, reply))
    except (ClientStalled, AnswerBroken):
        cut_connection(scope)
    except ClientDisconnected:
        pass
    except ShuttingDown:
        await break_off(scope, client, reply)
    except GatewayError as error:
        await reply.fail(error)


def shutting_down() -> GatewayError:
    """Return the error of a request that the gateway's end cuts off."""
    return GatewayError(503, "The gateway is shutting down.", code="shutting_down", retry_after_s=1.0)


async def break_off(scope: Scope, client: Client, reply: ErrorReply) -> None:
    """Say why the answer ends, as far as what was sent of it leaves room for that."""
    opening, error = client.opening, shutting_down()
    try:
        async with asyncio.timeout(BREAK_OFF_S):
            if opening is None:
                await reply.fail(error)
            elif not client.is_complete and _is_event_stream(opening):
                # A passed answer may have been cut within an event.
                last_event = b"\n\ndata: " + encode_error(error) + b"\n\n"
                await reply.send({"type": "http.response.body", "body": last_event, "more_body": False})
            elif not client.is_complete:
                cut_connection(scope)
    except TimeoutError:
        cut_connection(scope)


def _is_event_stream(opening: Message) -> bool:
    """Say whether an answer is one of server-sent events."""
    return any(name == b"content-type" and b"text/event-stream" in value for name, value in opening["headers"])


async def parse(body: bytes) -> JsonObject:
    """Parse a body; a large one beside the event loop, which then waits for no more than one step of it."""
    return parse_object(body) if len(body) <= INLINE_BODY_BYTES else await asyncio.to_thread(parse_object, body)
