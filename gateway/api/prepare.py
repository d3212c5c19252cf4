"""A checked request as the work that it is: one generation per choice, and how its answer is to be written."""

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from backends.types import Sampling
from gateway.api.fields import STATELESS_FIELDS, STRUCTURED_FIELDS, THINKING_BUDGET_FIELDS, is_structured, stop_strings
from gateway.api.wire import ChatFields, GenerationFields
from gateway.auth.secrets import NO_SALTS, Salts
from gateway.errors import GatewayError, bad_field
from gateway.http.body import JsonObject
from gateway.relay.types import GenerationRequest
from gateway.telemetry.trace_context import TraceContext
from gateway.text.control_tokens import CUT, ControlTokensRefused
from gateway.text.detokenise import TextOptions
from gateway.text.model import ServedModel
from gateway.text.parsers.reader import AnswerReader
from gateway.text.tokenise import CannotCut, PromptTooLong
from gateway.text.turns import OngoingTurn
from policies.eligibility import RequestFeatures
from policies.rules import Rules

MOST_CHOICES = 128


def rename(prepared: "PreparedRequest", prefix: str) -> "PreparedRequest":
    """Return a request of one choice under a name as another API spells them."""
    name = prefix + prepared.id.rpartition("-")[2]
    return replace(
        prepared, id=name, requests=tuple(replace(one, request_id=name, part_of=name) for one in prepared.requests)
    )


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, under which rules, and what the request's headers say.

    ``cache_salt``: the tenant's, see ``gateway.auth.secrets``. ``priority``: the smallest goes first.
    """

    tenant: str
    rules: Rules = field(default_factory=Rules)
    cache_salt: str | None = None
    salts: Salts = NO_SALTS
    priority: int | None = None
    debug: bool = False
    """Whether the answer may tell how it was made."""
    traced: bool = False
    output_hint_tokens: int | None = None
    trace: TraceContext | None = None
    """The client's span."""

    def salt_of(self, model: str) -> str | None:
        """The salt of requests to a model."""
        return self.salts.of_model(self.cache_salt, model)


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """One client request, ready to run. Choice ``i`` answers prompt ``i // n``."""

    id: str
    created: int
    model: ServedModel
    model_name: str
    """What the client called the model."""
    n: int
    prompts: tuple[Sequence[int], ...]
    requests: tuple[GenerationRequest, ...]
    text: TextOptions
    logprobs: int | None
    """Alternatives per position to show; None: no log-probabilities."""
    stream: bool
    include_usage: bool
    continuous_usage: bool
    return_token_ids: bool
    debug: bool
    traced: bool
    echoes: tuple[str, ...] = ()
    """Prompt texts that the answers begin with."""
    make_reader: Callable[[], AnswerReader] | None = None
    """Makes what tells a choice's reasoning and tool calls from its content; None: all of it is content."""
    turn: OngoingTurn | None = None
    """Keeps the one answer's ids for the conversation's next turn."""

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts, each counted once."""
        return sum(map(len, self.prompts))

    @property
    def most_output_tokens(self) -> int:
        """The most that all answers may have together."""
        unlimited = [len(one.prompt) for one in self.requests if one.max_tokens is None]
        most = sum(one.max_tokens or 0 for one in self.requests)
        return most + (self.model.context_tokens * len(unlimited) - sum(unlimited) if unlimited else 0)

    def after_waiting(self, tokenise_s: float, waited_s: float) -> "PreparedRequest":
        """Return the same request, which has waited for a place after ``tokenise_s`` that made it ids."""
        requests = tuple(replace(one, tokenise_s=tokenise_s, waited_s=waited_s) for one in self.requests)
        return replace(self, requests=requests)

    @property
    def shows_ids(self) -> bool:
        """Say whether a chunk is of use also where its ids are no text yet."""
        return self.return_token_ids or self.logprobs is not None or self.traced


@dataclass(frozen=True, slots=True)
class Prompted:
    """What chat and completions make of their own fields: prompts, limits and names."""

    id_prefix: str
    prompts: tuple[Sequence[int], ...]
    prompt_field: str
    limit_field: str
    max_tokens: int | None
    default_max_tokens: int | None
    logprobs: int | None
    echoes: tuple[str, ...] = ()
    make_reader: Callable[[], AnswerReader] | None = None
    turn: OngoingTurn | None = None


def prepare_request(
    fields: GenerationFields, rest: JsonObject, prompted: Prompted, model: ServedModel, caller: Caller
) -> PreparedRequest:
    """Check the limits that depend on the prompts, and build the generations. Raises GatewayError."""
    n = fields.n or 1
    if n * len(prompted.prompts) > MOST_CHOICES:
        raise bad_field(prompted.prompt_field, f"A request may ask for at most {MOST_CHOICES} choices.")
    request_id = f"{prompted.id_prefix}-{uuid.uuid4().hex}"
    tenant_limits = caller.rules.limits
    context_tokens = model.context_tokens
    prompts = tuple(fit_prompt(prompt, fields, prompted, model, context_tokens) for prompt in prompted.prompts)
    for prompt in prompts:
        check_prompt_limit(len(prompt), prompted.prompt_field, caller)
    limits = [fit_limit(prompt, prompted, context_tokens, tenant_limits.max_output_tokens) for prompt in prompts]
    for prompt, limit in zip(prompts, limits, strict=True):
        check_min_tokens(fields, context_tokens - len(prompt) if limit is None else limit)
    options = fields.stream_options
    sampling = make_sampling(fields, rest, prompted.logprobs)
    features = [find_features(fields, rest, sampling, model, limit) for limit in limits]
    choices = n * len(prompts)
    requests = tuple(
        GenerationRequest(
            request_id=request_id if choices == 1 else f"{request_id}-{index}",
            model=model.name,
            prompt=prompts[index // n],
            max_tokens=limits[index // n],
            min_tokens=fields.min_tokens or 0,
            sampling=seed_choice(sampling, index % n),
            eos_token_ids=model.eos_token_ids,
            tenant=caller.tenant,
            cache_salt=caller.salt_of(model.name),
            priority=caller.priority,
            rules=caller.rules,
            session=fields.prompt_cache_key,
            features=features[index // n],
            output_hint_tokens=caller.output_hint_tokens,
            trace=caller.trace,
            part_of=request_id,
        )
        for index in range(choices)
    )
    return PreparedRequest(
        id=request_id,
        created=int(time.time()),
        model=model,
        model_name=fields.model,
        n=n,
        prompts=prompts,
        requests=requests,
        text=make_text_options(fields, sampling, model, reads_parts=prompted.make_reader is not None),
        logprobs=prompted.logprobs,
        stream=bool(fields.stream),
        include_usage=bool(options and options.include_usage),
        continuous_usage=bool(options and options.include_usage and options.continuous_usage_stats),
        return_token_ids=bool(fields.return_token_ids),
        debug=caller.debug,
        traced=caller.traced,
        echoes=prompted.echoes,
        make_reader=prompted.make_reader,
        turn=prompted.turn if choices == 1 else None,
    )


async def encode_prompt(
    make_text: Callable[[], str],
    size_hint: int,
    fields: GenerationFields,
    model: ServedModel,
    field: str,
    special: bool,
    caller: Caller,
    turn: OngoingTurn | None = None,
) -> list[int]:
    """Return the ids of a prompt's text; what ``make_text`` raises comes through. Raises GatewayError."""
    limit = model.context_tokens if fields.truncate_prompt_tokens is None else None
    cut = CUT if caller.rules.prompts.special_tokens == "text" else None
    try:
        return await model.encoder.encode(
            make_text, size_hint, special=special, scope=caller.tenant, limit_tokens=limit, start=turn, cut=cut
        )
    except PromptTooLong as error:
        raise over_context(field, model, f"far more than {model.context_tokens}") from error
    except ControlTokensRefused as error:
        raise spells_control(field, str(error)) from error
    except CannotCut as error:
        raise spells_control(field, "This model's tokeniser cannot read control tokens as text.") from error


def read_by_engine(value: Any, model: ServedModel, caller: Caller, field: str) -> None:
    """Check what an engine is to make a prompt of: it reads control tokens as such. Raises GatewayError."""
    rule = caller.rules.prompts.special_tokens
    if rule != "allow" and (guard := model.control.guard("refuse")) is not None:
        try:
            guard(value)
        except ControlTokensRefused as error:
            raise spells_control(field, str(error)) from error


def spells_control(field: str, message: str) -> GatewayError:
    """Return the error of a text that spells a control token."""
    return bad_field(field, message, "control_token")


def over_context(field: str, model: ServedModel, tokens: object) -> GatewayError:
    """Return the error of a prompt that leaves no room for an answer."""
    message = f"This model's maximum context length is {model.context_tokens} tokens, and the prompt has {tokens}."
    return bad_field(field, message, "context_length_exceeded")


def fit_prompt(
    prompt: Sequence[int], fields: GenerationFields, prompted: Prompted, model: ServedModel, context_tokens: int
) -> Sequence[int]:
    """Return the prompt, cut on the left on request, that every leg will use."""
    if fields.truncate_prompt_tokens is not None:
        room = context_tokens - (prompted.max_tokens or 1)
        kept = room if fields.truncate_prompt_tokens == -1 else fields.truncate_prompt_tokens
        prompt = prompt[-max(1, kept) :]
    if not prompt:
        raise bad_field(prompted.prompt_field, "The prompt has no tokens.", "invalid_value")
    if len(prompt) >= context_tokens:
        raise over_context(prompted.prompt_field, model, len(prompt))
    return prompt


def check_prompt_limit(tokens: int, field: str, caller: Caller) -> None:
    """Refuse a prompt that is longer than the tenant's may be."""
    most = caller.rules.limits.max_prompt_tokens
    if most is not None and tokens > most:
        message = f"The prompt has {tokens} tokens, and the limit is {most}."
        raise bad_field(field, message, "prompt_too_long")


def check_min_tokens(fields: GenerationFields, most: int) -> None:
    """Refuse an answer that must be longer than it may be."""
    if (fields.min_tokens or 0) > most:
        raise bad_field("min_tokens", "min_tokens must not be more than the answer may have.", "invalid_value")


def fit_limit(prompt: Sequence[int], prompted: Prompted, context_tokens: int, most: int | None = None) -> int | None:
    """Return the answer's limit: the room that the prompt leaves, at most, as engines have it.

    What a client named must fit the context, and the tenant's ``most``.
    """
    room = context_tokens - len(prompt)
    if prompted.max_tokens is None:
        unnamed = [limit for limit in (prompted.default_max_tokens, most) if limit is not None]
        return min(*unnamed, room) if unnamed else None
    if most is not None and prompted.max_tokens > most:
        message = f"{prompted.limit_field} may be at most {most}."
        raise bad_field(prompted.limit_field, message, "output_limit_exceeded")
    if prompted.max_tokens > context_tokens:
        raise bad_field(
            prompted.limit_field,
            f"This model's maximum context length is {context_tokens} tokens: the prompt has {len(prompt)} and "
            f"{prompted.limit_field} asks for {prompted.max_tokens} more.",
            "context_length_exceeded",
        )
    return min(prompted.max_tokens, room)


def make_sampling(fields: GenerationFields, rest: JsonObject, logprobs: int | None) -> Sampling:
    """Return the fields that decode legs carry."""
    extra = dict(rest)
    if fields.bad_words:
        extra["bad_words"] = fields.bad_words
    return Sampling(
        temperature=fields.temperature,
        top_p=fields.top_p,
        top_k=fields.top_k,
        min_p=fields.min_p,
        seed=fields.seed,
        presence_penalty=fields.presence_penalty,
        frequency_penalty=fields.frequency_penalty,
        repetition_penalty=fields.repetition_penalty,
        logit_bias=fields.logit_bias or None,
        stop_token_ids=tuple(fields.stop_token_ids or ()),
        ignore_eos=bool(fields.ignore_eos),
        logprobs=logprobs,
        extra=extra,
    )


def seed_choice(sampling: Sampling, choice: int) -> Sampling:
    """Return the sampling of the n-th choice of a prompt: as engines do, the seed counts up."""
    return sampling if sampling.seed is None or not choice else replace(sampling, seed=sampling.seed + choice)


def make_text_options(
    fields: GenerationFields, sampling: Sampling, model: ServedModel, *, reads_parts: bool
) -> TextOptions:
    """Return how ids become the client's text; ``reads_parts``: a reader comes between."""
    eos = frozenset[int]() if sampling.ignore_eos else model.eos_token_ids
    return TextOptions(
        stop=stop_strings(fields),
        include_stop_str_in_output=bool(fields.include_stop_str_in_output),
        skip_special_tokens=fields.skip_special_tokens is not False,
        spaces_between_special_tokens=fields.spaces_between_special_tokens is not False,
        min_tokens=fields.min_tokens or 0,
        terminators=eos | frozenset(sampling.stop_token_ids),
        shown=model.shown_tokens if reads_parts else {},
    )


def find_features(
    fields: GenerationFields, rest: JsonObject, sampling: Sampling, model: ServedModel, max_tokens: int | None
) -> RequestFeatures:
    """Return what decides whether the answers may be split; each choice is an answer of its own."""
    return RequestFeatures(
        structured_output=is_structured(rest),
        presence_penalty=sampling.presence_penalty or 0.0,
        frequency_penalty=sampling.frequency_penalty or 0.0,
        multi_token_bad_words=any(has_several_tokens(word, model) for word in fields.bad_words or ()),
        seeded=sampling.seed is not None,
        temperature=sampling.temperature,
        thinking_budget=not THINKING_BUDGET_FIELDS.isdisjoint(rest),
        unknown_field=not rest.keys() <= STATELESS_FIELDS | STRUCTURED_FIELDS | THINKING_BUDGET_FIELDS,
        tools=isinstance(fields, ChatFields) and bool(fields.tools),
        logprobs=sampling.logprobs is not None,
        max_tokens=max_tokens,
    )


def has_several_tokens(word: str, model: ServedModel) -> bool:
    """Say whether a forbidden word is several tokens, alone or after a space; it may be, where only engines know."""
    return not model.encodes or any(len(model.encoder.encode_now(text)) > 1 for text in (word, f" {word}"))
