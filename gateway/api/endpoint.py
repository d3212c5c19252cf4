"""The generating endpoints as bare ASGI callables: body in, prepared request, answers merged, bytes out."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

from starlette.types import Receive, Scope, Send

from backends.engines.external import ExternalUsage
from gateway import errors
from gateway.api.choices import AnswerFormat, Choice, count_cached
from gateway.api.client_fields import without_internal
from gateway.api.exchange import Access, Asked, RequestLimits, hold_exchange, parse
from gateway.api.models import Models, resolve_name
from gateway.api.outside import Outside, OverflowAnswers, Passthrough
from gateway.api.prepare import Caller, PreparedRequest
from gateway.api.respond import StreamWriter, write_stream, write_whole
from gateway.errors import GatewayError
from gateway.http.body import JsonObject
from gateway.http.client import Client
from gateway.limits.admission import Admission
from gateway.limits.usage import Use, use_of_slo
from gateway.relay.types import Answer, Generator
from policies.rules import Rules

Prepare = Callable[[JsonObject, int, Models, Caller], Awaitable[PreparedRequest]]


@dataclass(slots=True)
class RunningRequest:
    """What was started for one request. ``failed``: the client was told so instead of an answer."""

    answers: list[Answer] = field(default_factory=list)
    choices: list[Choice] = field(default_factory=list)
    entry: Admission | None = None
    job: PreparedRequest | None = None
    failed: bool = False
    slo_met: bool | None = None
    """Whether an external answer kept the tenant's ``slo``; False also when nothing could be started."""
    outside: ExternalUsage | None = None
    """What an external provider took, once it told."""

    def note_outside(self, usage: ExternalUsage | None, slo_met: bool | None) -> None:
        """An external provider's answer has ended."""
        self.outside = usage
        self.slo_met = slo_met

    async def aclose(self) -> None:
        """End what runs, and leave the gate whatever comes between."""
        try:
            if len(self.answers) == 1:
                await self.answers[0].aclose()
            else:
                # Each takes its time to end its legs, and none may run on meanwhile.
                await asyncio.gather(*[answer.aclose() for answer in self.answers])
        finally:
            self.leave()

    def leave(self) -> None:
        """Leave the gate, with what the answers did cost. Idempotent."""
        use = use_of_slo(self.slo_met)
        if self.entry is not None and self.outside is not None:
            told = self.outside
            use.add(Use(1, told.prompt_tokens, other_tokens=told.completion_tokens, cost=told.cost_usd or 0.0))
            self.entry.leave(use, told.prompt_tokens + told.completion_tokens)
        elif self.entry is not None and self.job is not None:
            completion = sum(choice.completion_tokens for choice in self.choices)
            # A request that came to nothing by no fault of the client's costs it nothing.
            prompt = 0 if self.failed and not completion else self.job.prompt_tokens
            cached = (count_cached(self.choices, self.job.n) or 0) if prompt and self.choices else 0
            use.add(Use(1, prompt, cached))
            self.entry.leave(use, prompt + completion)


class GenerationEndpoint:
    """One of ``/v1/chat/completions`` and ``/v1/completions``."""

    def __init__(
        self,
        prepare: Prepare,
        form: AnswerFormat,
        models: Models,
        generator: Generator,
        access: Access,
        limits: RequestLimits,
        path: str,
        passing: Passthrough | None = None,
        overflow: OverflowAnswers | None = None,
    ) -> None:
        self._overflow = overflow
        self._path = path
        self._passing = passing
        self._prepare = prepare
        self._form = form
        self._models = models
        self._generator = generator
        self._access = access
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request to its end."""
        run = RunningRequest()
        try:
            await hold_exchange(scope, receive, send, self._access, self._limits, partial(self._serve, run))
        finally:
            await run.aclose()

    async def _serve(self, run: RunningRequest, asked: Asked) -> None:
        value = await parse(asked.body)
        session = value.get("prompt_cache_key")
        rules = self._access.rules_of(asked.tenant, session if isinstance(session, str) else asked.reply.request_id)
        caller = self._access.make_caller(asked.headers, asked.tenant, rules)
        value = without_internal(value, rules.client_fields)
        if (passing := self._find_passing(value.get("model"), rules)) is not None:
            await passing.pass_object(self._path, value, asked.headers, caller, asked.client)
            return
        run.job = job = await self._prepare(value, len(asked.body), self._models, caller)
        asked.reply.request_id = job.id
        outside = self._choose_outside(job, caller, refused=False)
        try:
            run.entry = await self._enter(job, caller, 0 if outside else len(job.requests))
            run.job = job = job.after_waiting(run.entry.waited_s)
            await self._answer(job, value, asked.client, caller, run, outside)
        except GatewayError:
            run.failed = True
            raise
        # At once: a client that has its answer may ask again, while legs may still be ending.
        run.leave()

    def _find_passing(self, model: object, rules: Rules) -> Passthrough | None:
        """What passes on requests for the model; None: its requests are served here."""
        if self._passing is None or not isinstance(model, str):
            return None
        return self._passing if self._passing.passes(resolve_name(model, rules.models)) else None

    def _choose_outside(self, job: PreparedRequest, caller: Caller, *, refused: bool) -> Outside | None:
        """Who answers in place of the engines; ``refused``: they cannot."""
        return None if self._overflow is None else self._overflow.choose(job.model.name, caller.rules, refused=refused)

    async def _enter(self, job: PreparedRequest, caller: Caller, places: int) -> Admission:
        gate, most = self._access.gate, job.most_output_tokens
        return await gate.enter(caller.tenant, caller.rules, job.model.name, job.prompt_tokens, most, places)

    async def _answer(
        self,
        job: PreparedRequest,
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
                self._start(job, run)
            except GatewayError as failure:
                outside = self._choose_outside(job, caller, refused=True) if failure.code == "no_instance" else None
                if outside is None:
                    run.slo_met = caller.rules.slo.judge_failure() if failure.status >= 500 else None
                    raise
        if outside is not None and self._overflow is not None:
            await self._overflow.answer(outside, job, value, client, entry_headers, run.note_outside)
            return
        headers: errors.RawHeaders = [
            (b"x-request-id", job.id.encode()),
            *(spell_plan(run.answers[0]) if job.debug else ()),
            *entry_headers,
        ]
        if job.stream:
            await write_stream(client, run.answers, StreamWriter(job, self._form, run.choices), headers)
        else:
            await write_whole(client, run.answers, job, self._form, run.choices, headers)

    def _start(self, job: PreparedRequest, run: RunningRequest) -> None:
        for index, request in enumerate(job.requests):
            answer = self._generator.generate(request)
            run.answers.append(answer)
            reader = job.make_reader() if job.make_reader is not None else None
            run.choices.append(Choice(index, answer, job.model.vocabulary, job.text, reader))


def spell_plan(answer: Answer) -> errors.RawHeaders:
    """Return the headers that tell how an answer is made."""
    return [(b"x-pdd-plan", answer.plan_name.encode()), (b"x-pdd-reason", answer.plan_reason.encode())]
