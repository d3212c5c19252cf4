"""The HTTP dialect: vLLM's completion requests, and what makes them bad ones."""

import re
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from backends.engines.reference.sequence import Params

MAX_LOGPROBS = 20
DEFAULT_MAX_TOKENS = 16
GREEDY_BELOW = 1e-5
LOWEST_TEMPERATURE = 0.01


class BadRequest(Exception):
    """The client's mistake: ``param`` names the field."""

    def __init__(self, message: str, param: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.param = param
        self.status = status

    def body(self) -> dict[str, Any]:
        """The error as vLLM writes it."""
        kind = "NotFoundError" if self.status == 404 else "BadRequestError"
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.status}}


class EngineStreamOptions(msgspec.Struct):
    """``stream_options`` of a completion request."""

    include_usage: bool = False
    continuous_usage_stats: bool = False
    """Each chunk tells the usage so far; only beside ``include_usage``."""


class CompletionRequest(msgspec.Struct, kw_only=True):
    """``POST /v1/completions``. Fields that are not named here are ignored, as vLLM does."""

    prompt: str | list[Any]
    model: str | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    min_tokens: Annotated[int, Meta(ge=0)] = 0
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=100)] | None = None
    logit_bias: dict[str, Annotated[float, Meta(ge=-100, le=100)]] | None = None
    logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    stream: bool = False
    stream_options: EngineStreamOptions | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    add_special_tokens: bool = True
    cache_salt: str | None = None
    priority: int = 0
    n: int | None = None
    best_of: int | None = None
    echo: bool = False
    suffix: str | None = None
    prompt_logprobs: int | None = None
    request_id: str | None = None
    response_format: dict[str, Any] | None = None
    structured_outputs: Any = None


class TokenizeRequest(msgspec.Struct):
    """``POST /tokenize``."""

    prompt: str
    model: str | None = None
    add_special_tokens: bool = True


class DetokenizeRequest(msgspec.Struct):
    """``POST /detokenize``."""

    tokens: list[int]
    model: str | None = None


_Body = TypeVar("_Body", CompletionRequest, TokenizeRequest, DetokenizeRequest)


def decode(body: bytes, kind: type[_Body]) -> _Body:
    """Parse a request body. Raises BadRequest."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        path = re.search(r"at `\$\.?([^`]*)`", str(error))
        missing = re.search(r"missing required field `([^`]*)`", str(error))
        param = missing[1] if missing else path[1] if path else None
        raise BadRequest(str(error), param or None) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"the body is not valid JSON: {error}") from error


def check_supported(request: CompletionRequest) -> None:
    """Refuse what this engine does not do. Raises BadRequest."""
    if request.n not in (None, 1) or request.best_of not in (None, 1):
        raise BadRequest("only one answer per request is supported", "n")
    refused = {
        "echo": request.echo,
        "suffix": request.suffix,
        "prompt_logprobs": request.prompt_logprobs is not None,
        "stop": request.stop,
        "response_format": (request.response_format or {}).get("type", "text") != "text",
        "structured_outputs": request.structured_outputs is not None,
    }
    for name, given in refused.items():
        if given:
            raise BadRequest(f"{name} is not supported by this engine", name)
    if request.cache_salt == "":
        raise BadRequest("cache_salt must not be empty", "cache_salt")


def check_ids(ids: list[Any], vocab_tokens: int, param: str) -> list[int]:
    """``ids`` when all are token ids of the model. Raises BadRequest."""
    if ids and (set(map(type, ids)) != {int} or min(ids) < 0 or max(ids) >= vocab_tokens):
        raise BadRequest(f"{param} must hold token ids between 0 and {vocab_tokens - 1}", param)
    return ids


def to_params(
    request: CompletionRequest, prompt_tokens: int, context_tokens: int, vocab_tokens: int, eos: frozenset[int]
) -> Params:
    """Generation parameters of a checked request. Raises BadRequest."""
    room = context_tokens - prompt_tokens
    if prompt_tokens < 1:
        raise BadRequest("the prompt must hold at least one token", "prompt")
    if room < 1:
        raise BadRequest(
            f"This model's maximum context length is {context_tokens} tokens. However, your request has "
            f"{prompt_tokens} input tokens and needs room for one more.",
            "prompt",
        )
    if request.max_tokens is not None and request.max_tokens > room:
        raise BadRequest(
            f"max_tokens={request.max_tokens} does not fit: the context is {context_tokens} tokens, the prompt has "
            f"{prompt_tokens}.",
            "max_tokens",
        )
    max_tokens = request.max_tokens or min(DEFAULT_MAX_TOKENS, room)
    if request.min_tokens > max_tokens:
        raise BadRequest(f"min_tokens must not exceed max_tokens={max_tokens}", "min_tokens")
    return Params(
        max_tokens=max_tokens,
        min_tokens=request.min_tokens,
        temperature=_temperature(_given(request.temperature, 1.0)),
        top_p=_given(request.top_p, 1.0),
        top_k=max(0, request.top_k or 0),
        min_p=request.min_p or 0.0,
        seed=request.seed,
        presence_penalty=request.presence_penalty or 0.0,
        frequency_penalty=request.frequency_penalty or 0.0,
        repetition_penalty=_given(request.repetition_penalty, 1.0),
        logit_bias=_bias(request.logit_bias or {}, vocab_tokens),
        stop_token_ids=frozenset(check_ids(request.stop_token_ids or [], vocab_tokens, "stop_token_ids")),
        eos_token_ids=frozenset() if request.ignore_eos else eos,
        logprobs=None if request.logprobs is None else min(request.logprobs, vocab_tokens),
        cache_salt=request.cache_salt,
        priority=request.priority,
    )


def _bias(bias: dict[str, float], vocab_tokens: int) -> dict[int, float]:
    if not all(key.isdecimal() and len(key) <= 10 for key in bias):
        raise BadRequest("logit_bias must be keyed by token ids", "logit_bias")
    return dict(zip(check_ids([int(key) for key in bias], vocab_tokens, "logit_bias"), bias.values(), strict=True))


def _temperature(value: float) -> float:
    """Nearly 0 is 0, and what is above it stays far enough from 0 to divide by."""
    return 0.0 if value < GREEDY_BELOW else max(value, LOWEST_TEMPERATURE)


def _given(value: float | None, default: float) -> float:
    return default if value is None else value
