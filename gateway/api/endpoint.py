"""The generating endpoints as bare ASGI callables: body in, prepared request, answers, bytes out.

``serve_request`` is the frame of any request, also of those that are passed on: who asks and what, and what the client
is told when its answer does not come.
"""

import asyncio
import re
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.types import Message, Receive, Scope, Send

from backends.engines.external import ExternalUsage
from gateway import errors
from gateway.api.choices import Choice, count_cached
from gateway.api.fields import check_beside, without_internal
from gateway.api.media import has_media
from gateway.api.models import Models, resolve_name
from gateway.api.outside import AnswerBroken, Outside, OverflowAnswers, Passthrough
from gateway.api.prepare import Caller, PreparedRequest
from gateway.api.respond import AnswerShape, KeepAnswer, write_stream, write_whole
from gateway.auth.identify import Identify
from gateway.auth.secrets import Salts
from gateway.errors import OPENAI_ERRORS, ErrorShape, GatewayError, error_messages, failed
from gateway.http.body import ClientDisconnected, ClientStalled, JsonObject, parse_object, read_body
from gateway.http.client import Client, Clients, ShuttingDown
from gateway.http.edge import cut_connection
from gateway.http.encodings import unpack_body
from gateway.limits.admission import RANKS, Admission, AdmissionControl
from gateway.limits.bodies import HeldBytes
from gateway.limits.usage import Use, use_of_slo
from gateway.relay.types import Answer, Generator
from gateway.telemetry.access import TENANT
from gateway.telemetry.trace_context import read_context
from policies.rules import BadRules, Rules, ask_plan

INLINE_BODY_BYTES = 256 << 10


BREAK_OFF_S = 1.0
"""How long a client may take to take the last words of a gateway that ends."""


PLAN_HEADER = "x-pdd-ask"


def narrow(rules: Rules, asked: str, debug: bool) -> Rules:
    """Return rules under which a request gets the plan that its header asks for. Raises GatewayError."""
    if not debug:
        raise GatewayError(400, f"{PLAN_HEADER} is for tenants whose rules say `debug: true`.", param=PLAN_HEADER)
    try:
        return ask_plan(rules, asked)
    except BadRules as error:
        raise GatewayError(400, f"{PLAN_HEADER}: {error}", param=PLAN_HEADER) from None


HINT = re.compile(r"[0-9]{1,7}")


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """What one client may ask of the gateway's edge."""

    body_bytes: int = 32 << 20
    body_timeout_s: float = 120.0
    write_timeout_s: float = 60.0
    """A client that takes no bytes for so long is given up."""
    beside_bytes: int = 64 << 10
    """See ``check_beside``."""


@dataclass(frozen=True, slots=True)
class Access:
    """Who may ask, under which rules, and when."""

    identify: Identify
    rules_of: Callable[[str, str], Rules]
    """Return the rules in force for a tenant's request or session, named by a key. Raises GatewayError."""
    salts: Salts
    admission: AdmissionControl
    shows_plans: bool = False
    """Whether answers tell how they were made, whatever the rules say."""
    clients: Clients = field(default_factory=Clients)
    """Whose answers run."""

    def make_caller(self, headers: Headers, tenant: str, rules: Rules) -> Caller:
        """Return who asks, under which rules, and what the headers say. Raises GatewayError."""
        debug = rules.debug or self.shows_plans
        if (asked := headers.get(PLAN_HEADER)) is not None:
            rules = narrow(rules, asked, debug)
        hint = headers.get("x-pdd-output-tokens", "")
        return Caller(
            tenant=tenant,
            rules=rules,
            cache_salt=self.salts.of(tenant, rules.cache.group),
            salts=self.salts,
            priority=RANKS[rules.priority],
            debug=debug,
            traced=debug and headers.get("x-pdd-trace") == "1",
            output_hint_tokens=int(hint) if HINT.fullmatch(hint) else None,
            trace=read_context(headers),
        )


@dataclass(slots=True)
class ErrorReply:
    """Where errors go, and the request's name on them. Whoever answers may give it a better name."""

    send: Send
    request_id: str
    shape: ErrorShape = OPENAI_ERRORS

    async def fail(self, error: GatewayError) -> None:
        for message in error_messages(error, [(b"x-request-id", self.request_id.encode())], self.shape):
            await self.send(message)


@dataclass(frozen=True, slots=True)
class ReceivedRequest:
    """A request that came whole, and from whom."""

    tenant: str
    headers: Headers
    body: bytes
    client: Client
    reply: ErrorReply
    held: HeldBytes
    """Holds the body; what the request needs beyond it is to be held, too."""


async def serve_request(
    scope: Scope,
    receive: Receive,
    send: Send,
    access: Access,
    limits: RequestLimits,
    answer: Callable[[ReceivedRequest], Awaitable[None]],
    shape: ErrorShape = OPENAI_ERRORS,
) -> None:
    """Take a request, let ``answer`` serve it to its end, and tell the client what it raises, in the API's ``shape``.

    ``answer`` may raise GatewayError while nothing was sent, and AnswerBroken after that.
    """
    reply = ErrorReply(send, f"req-{uuid.uuid4().hex}", shape)
    client = Client(receive, reply.send, limits.write_timeout_s)
    try:
        if access.clients.is_over:
            raise shutting_down()
        connection = HTTPConnection(scope)
        tenant = scope[TENANT] = access.identify(connection)
        with access.admission.visit(tenant, access.rules_of(tenant, reply.request_id)) as held:
            body = await read_body(scope, receive, limits.body_bytes, limits.body_timeout_s, held.grow)
            body = await unpack_body(scope, body, limits.body_bytes, held.grow)
            if access.clients.is_over:
                # The cut came before there was a client to tell of it.
                raise shutting_down()
            async with client:
                with access.clients.holding(client):
                    await answer(ReceivedRequest(tenant, connection.headers, body, client, reply, held))
    except (ClientStalled, AnswerBroken):
        cut_connection(scope)
    except ClientDisconnected:
        pass
    except ShuttingDown:
        await break_off(scope, client, reply)
    except GatewayError as error:
        await reply.fail(error)
    except Exception:  # a fault of ours: its client must not wait, and the server logs it
        if client.opening is None:
            await reply.fail(failed())
        raise


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
                last_event = b"\n\n" + reply.shape.spell_event(error)
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


NamePrompt = Callable[[str, Sequence[int], str | None], Awaitable[None]]
"""Takes a model, a prompt and its salt."""
Prepare = Callable[[JsonObject, int, Models, Caller], Awaitable[PreparedRequest]]


def as_it_is(value: JsonObject) -> JsonObject:
    """Return a body that needs no translation."""
    return value


class AnswerMemory(Protocol):
    """What an API keeps of its answers."""

    async def recall(self, tenant: str, value: JsonObject) -> tuple[JsonObject, JsonObject, int]:
        """Return a body with what it refers to, the body as the answer repeats it, and by how many bytes the one is
        larger. Raises GatewayError.
        """
        ...

    async def keep(self, tenant: str, read: JsonObject, answer: dict[str, Any]) -> None:
        """Keep a complete answer, or say in it that it is not kept. ``read``: the body with what it refers to."""
        ...


@dataclass(frozen=True, slots=True)
class GenerationApi:
    """One of the APIs that generate. ``translate``: of its bodies, into what ``prepare`` reads. Raises GatewayError."""

    path: str
    prepare: Prepare
    shape: AnswerShape
    translate: Callable[[JsonObject], JsonObject] = as_it_is


def find_session(value: JsonObject) -> str | None:
    """Return the client's name for the conversation, where it gives one."""
    metadata = value.get("metadata")
    found = value.get("prompt_cache_key") or (metadata.get("user_id") if isinstance(metadata, dict) else None)
    return found if isinstance(found, str) else None


@dataclass(slots=True)
class RunningRequest:
    """What was started for one request. ``failed``: the client was told so instead of an answer."""

    answers: list[Answer] = field(default_factory=list)
    choices: list[Choice] = field(default_factory=list)
    entry: Admission | None = None
    prepared: PreparedRequest | None = None
    failed: bool = False
    slo_met: bool | None = None
    """Whether an external answer kept the tenant's ``slo``; False also when nothing could be started."""
    outside: ExternalUsage | None = None
    """What an external provider took, once it told."""
    keep: KeepAnswer | None = None
    """Keeps the answer when it is complete."""

    def note_outside(self, usage: ExternalUsage | None, slo_met: bool | None) -> None:
        """An external provider's answer has ended."""
        self.outside = usage
        self.slo_met = slo_met

    async def aclose(self) -> None:
        """End what runs, and give the place back whatever comes between."""
        try:
            if len(self.answers) == 1:
                await self.answers[0].aclose()
            else:
                # Each takes its time to end its legs, and none may run on meanwhile.
                await asyncio.gather(*[answer.aclose() for answer in self.answers])
        finally:
            self.leave()

    def leave(self) -> None:
        """Give the place back, with what the answers did cost. Idempotent."""
        use = use_of_slo(self.slo_met)
        if self.entry is not None and self.outside is not None:
            told = self.outside
            use.add(Use(1, told.prompt_tokens, other_tokens=told.completion_tokens, cost=told.cost_usd or 0.0))
            self.entry.leave(use, told.prompt_tokens + told.completion_tokens)
        elif self.entry is not None and self.prepared is not None:
            completion = sum(choice.completion_tokens for choice in self.choices)
            # A request that came to nothing by no fault of the client's costs it nothing.
            prompt = 0 if self.failed and not completion else self.prepared.prompt_tokens
            cached = (count_cached(self.choices, self.prepared.n) or 0) if prompt and self.choices else 0
            use.add(Use(1, prompt, cached))
            self.entry.leave(use, prompt + completion)


class GenerationEndpoint:
    """The endpoint of one API."""

    def __init__(
        self,
        api: GenerationApi,
        models: Models,
        generator: Generator,
        access: Access,
        limits: RequestLimits,
        passing: Passthrough | None = None,
        overflow: OverflowAnswers | None = None,
        memory: AnswerMemory | None = None,
        name_prompt: NamePrompt | None = None,
    ) -> None:
        """``name_prompt`` is told of each prompt before its answers are planned."""
        self._api = api
        self._name_prompt = name_prompt
        self._memory = memory
        self._overflow = overflow
        self._passing = passing
        self._models = models
        self._generator = generator
        self._access = access
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request to its end."""
        run = RunningRequest()
        try:
            serve, errors = partial(self._serve, run), self._api.shape.errors
            await serve_request(scope, receive, send, self._access, self._limits, serve, errors)
        finally:
            await run.aclose()

    async def _serve(self, run: RunningRequest, asked: ReceivedRequest) -> None:
        size_bytes, admission = len(asked.body), self._access.admission
        async with admission.turn(asked.tenant, size_bytes):
            value = await parse(asked.body)
        rules = self._access.rules_of(asked.tenant, find_session(value) or asked.reply.request_id)
        caller = self._access.make_caller(asked.headers, asked.tenant, rules)
        value = without_internal(value, rules.client_fields)
        if (passing := self._find_passing(value, rules)) is not None:
            await passing.pass_object(self._api.path, value, asked.headers, caller, asked.client)
            return
        read = value
        if self._memory is not None:
            read, value, grown = await self._memory.recall(asked.tenant, value)
            asked.held.grow(grown)
            size_bytes += grown
            run.keep = partial(self._memory.keep, asked.tenant, read)
        body = self._api.translate(read)
        check_beside(body, size_bytes, self._limits.beside_bytes)
        came_s = time.monotonic()
        async with admission.turn(asked.tenant, size_bytes):
            run.prepared = prepared = await self._api.prepare(body, size_bytes, self._models, caller)
        tokenise_s = time.monotonic() - came_s
        asked.held.grow(size_bytes * (prepared.n - 1))
        asked.reply.request_id = prepared.id
        outside = self._choose_outside(prepared, caller, refused=False)
        try:
            run.entry = await self._enter(prepared, caller, 0 if outside else len(prepared.requests))
            run.prepared = prepared = prepared.after_waiting(tokenise_s, run.entry.waited_s)
            await self._answer(prepared, value, asked.client, caller, run, outside)
        except GatewayError:
            run.failed = True
            raise
        # At once: a client that has its answer may ask again, while legs may still be ending.
        run.leave()

    def _find_passing(self, value: JsonObject, rules: Rules) -> Passthrough | None:
        """What passes the request on; None: it is served here."""
        model = value.get("model")
        if self._passing is None or not isinstance(model, str):
            return None
        model = resolve_name(model, rules.models)
        if self._passing.passes(model) or (self._models.takes_media(model) and has_media(value)):
            return self._passing
        return None

    def _choose_outside(self, prepared: PreparedRequest, caller: Caller, *, refused: bool) -> Outside | None:
        """Who answers in place of the engines; ``refused``: they cannot."""
        return (
            None
            if self._overflow is None
            else self._overflow.choose(prepared.model.name, caller.rules, refused=refused)
        )

    async def _enter(self, prepared: PreparedRequest, caller: Caller, places: int) -> Admission:
        admission, most = self._access.admission, prepared.most_output_tokens
        return await admission.enter(
            caller.tenant, caller.rules, prepared.model.name, prepared.prompt_tokens, most, places
        )

    async def _answer(
        self,
        prepared: PreparedRequest,
        value: JsonObject,
        client: Client,
        caller: Caller,
        run: RunningRequest,
        outside: Outside | None,
    ) -> None:
        """Let engines answer, or whoever does in their place."""
        entry_headers = run.entry.headers if run.entry is not None else []
        if outside is None:
            try:
                if self._name_prompt is not None:
                    for prompt in prepared.prompts:
                        await self._name_prompt(prepared.model.name, prompt, caller.salt_of(prepared.model.name))
                self._start(prepared, run)
            except GatewayError as failure:
                outside = (
                    self._choose_outside(prepared, caller, refused=True) if failure.code == "no_instance" else None
                )
                if outside is None:
                    run.slo_met = caller.rules.slo.judge_failure() if failure.status >= 500 else None
                    raise
        if outside is not None and self._overflow is not None:
            await self._overflow.answer(outside, prepared, value, client, entry_headers, run.note_outside)
            return
        headers: errors.RawHeaders = [
            (b"x-request-id", prepared.id.encode()),
            *(spell_plan(run.answers[0]) if prepared.debug else ()),
            *entry_headers,
        ]
        shape = self._api.shape
        if prepared.stream:
            writer = shape.open_stream(prepared, run.choices, value)
            await write_stream(client, run.answers, writer, headers, run.keep)
        else:
            await write_whole(client, run.answers, prepared, shape, run.choices, value, headers, run.keep)

    def _start(self, prepared: PreparedRequest, run: RunningRequest) -> None:
        for index, request in enumerate(prepared.requests):
            answer = self._generator.generate(request)
            run.answers.append(answer)
            reader = prepared.make_reader() if prepared.make_reader is not None else None
            choice = Choice(index, answer, prepared.model.vocabulary, prepared.text, reader, prepared.turn)
            run.choices.append(choice)


def spell_plan(answer: Answer) -> errors.RawHeaders:
    """Return the headers that tell how an answer is made."""
    return [(b"x-pdd-plan", answer.plan_name.encode()), (b"x-pdd-reason", answer.plan_reason.encode())]
