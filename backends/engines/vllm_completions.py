"""vLLM's dialect of ``/v1/completions`` with token ids, without I/O: leg -> request body, SSE events -> leg chunks."""

import json
from typing import Any

import msgspec
import orjson

from backends.engines.dialect import IdTally, error_text, finite, judge, likeliest, safe_word
from backends.errors import BackendError, EngineBroken, EngineFailed, IdsMissing
from backends.types import EngineFinish, LegChunk, LegRequest, LegUsage, Sampling, TokenLogprob

OWN_FIELDS = frozenset(
    {
        "model", "prompt", "prompt_embeds", "max_tokens", "max_completion_tokens", "min_tokens", "stream",
        "stream_options", "return_token_ids", "return_tokens_as_token_ids", "logprobs", "prompt_logprobs", "n",
        "best_of", "use_beam_search", "echo", "suffix", "stop", "truncate_prompt_tokens", "request_id", "cache_salt",
        "priority", "kv_transfer_params", "temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty",
        "frequency_penalty", "repetition_penalty", "logit_bias", "stop_token_ids", "ignore_eos",
    }
)  # fmt: skip
"""Fields that ``Sampling.extra`` cannot set: they have a place of their own, or would change what comes back."""

STREAM_OPTIONS = {"include_usage": True, "continuous_usage_stats": True}
"""Each chunk tells how many tokens were made, so that a lost id shows in the chunk that lost it."""

_FINISHES: dict[str, EngineFinish] = {"stop": "stop", "length": "length"}

_PLAIN_SAMPLING = (
    "temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty", "repetition_penalty",
    "logit_bias",
)  # fmt: skip


def encode_leg(leg: LegRequest) -> bytes:
    """Build the body of a streamed leg."""
    return orjson.dumps(leg_fields(leg))


def leg_fields(leg: LegRequest) -> dict[str, Any]:
    """The body field by field; what was not given stays absent."""
    sampling = leg.sampling
    body: dict[str, Any] = {name: value for name, value in sampling.extra.items() if name not in OWN_FIELDS}
    body |= {
        "model": leg.model,
        "prompt": leg.prompt if isinstance(leg.prompt, list | tuple) else list(leg.prompt),
        "stream": True,
        "stream_options": STREAM_OPTIONS,
        "return_token_ids": True,
    }
    if leg.max_tokens is not None:
        body["max_tokens"] = leg.max_tokens
    if leg.min_tokens:
        body["min_tokens"] = leg.min_tokens
    if leg.cache_salt is not None:
        body["cache_salt"] = leg.cache_salt
    if leg.priority is not None:
        body["priority"] = leg.priority
    if leg.kv_ticket is not None:
        body["kv_transfer_params"] = dict(leg.kv_ticket)
    return body | encode_sampling(sampling)


def rank_header(leg: LegRequest) -> dict[str, str]:
    """The header that names the data-parallel rank, which both of vLLM's endpoints read; none: vLLM chooses."""
    return {} if leg.data_parallel_rank is None else {"X-data-parallel-rank": str(leg.data_parallel_rank)}


def encode_sampling(sampling: Sampling) -> dict[str, Any]:
    """Return the fields that have a place of their own."""
    fields = {name: value for name in _PLAIN_SAMPLING if (value := getattr(sampling, name)) is not None}
    if sampling.stop_token_ids:
        fields["stop_token_ids"] = sampling.stop_token_ids
    if sampling.ignore_eos:
        fields["ignore_eos"] = True
    if sampling.logprobs is not None:
        fields["logprobs"] = sampling.logprobs
        fields["return_tokens_as_token_ids"] = True
    return fields


class _PromptDetails(msgspec.Struct, gc=False):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: int = 0
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None


class _TokenLogprob(msgspec.Struct):
    token_id: int
    logprob: float | None = None
    top_logprobs: list["_TokenLogprob"] = []


class _Logprobs(msgspec.Struct):
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float | None] | None] | None = None
    content: list[_TokenLogprob] | None = None
    """How ``/inference/v1/generate`` writes them."""


class _Choice(msgspec.Struct):
    text: str | None = None
    token_ids: list[int] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: _Logprobs | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None
    message: Any = None
    """The error events of older engines have their fields at the top, and no choices."""
    param: Any = None
    code: Any = None


_decode_chunk = msgspec.json.Decoder(_Chunk).decode


class CompletionDecoder:
    """Turns the events of one leg into chunks and watches that no id is lost on the way."""

    def __init__(self, alternatives: int | None) -> None:
        self._alternatives = alternatives
        self._tally = IdTally()
        self._told: _Usage | None = None
        self._is_first = True
        self.is_done = False
        """[DONE] came after a finish_reason: the engine has ended the stream properly."""

    def feed(self, event: bytes) -> LegChunk | None:
        """Return what the event tells, or None. Raises EngineBroken, or what an error event amounts to."""
        if self.is_done:
            return None
        if event == b"[DONE]":
            return self._end()
        try:
            chunk = _decode_chunk(event)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            chunk = parse_odd_chunk(event)
        if chunk.error is not None or (chunk.message is not None and chunk.choices is None):
            raise self._failure(chunk.error if chunk.error is not None else msgspec.structs.asdict(chunk))
        self._is_first = False
        if not chunk.choices:
            return self._end_usage(chunk.usage)
        choice = chunk.choices[0]
        ids, self._told = choice.token_ids, chunk.usage or self._told
        if ids is None and choice.text:
            raise IdsMissing("the engine streams text without token ids")
        self._tally.add(len(ids or ()), chunk.usage.completion_tokens if chunk.usage is not None else None)
        finish = self._finish(choice.finish_reason) if choice.finish_reason else None
        if not (ids or finish):
            return None
        logprobs = _token_logprobs(choice.logprobs, ids, self._alternatives or 0) if choice.logprobs and ids else None
        return LegChunk(tuple(ids or ()), logprobs, finish, choice.stop_reason if finish else None)

    def _finish(self, reason: str) -> EngineFinish:
        finish = _FINISHES.get(reason)
        if finish is None:
            raise EngineFailed(f"finish_reason {safe_word(reason)}")
        self._tally.finish()
        return finish

    def _failure(self, error: object) -> BackendError:
        """Judge an error event: the first in place of an answer counts like the HTTP status that it names."""
        code = error.get("code") if isinstance(error, dict) else None
        failure = judge(code if type(code) is int and 400 <= code <= 599 else 500, *error_text(error))
        if self._is_first and not isinstance(failure, EngineFailed):
            return failure
        return EngineFailed(f"error event, code {safe_word(code)}")

    def _end_usage(self, usage: _Usage | None) -> LegChunk | None:
        """Take a chunk that has nothing but usage."""
        if usage is None:
            return None
        self._tally.add(0, usage.completion_tokens)
        self._told = None
        return LegChunk(usage=_leg_usage(usage))

    def _end(self) -> LegChunk | None:
        """Take [DONE]; what the last chunks told of usage counts if none came by itself."""
        self._tally.end()
        self.is_done = True
        return LegChunk(usage=_leg_usage(self._told)) if self._told is not None else None


def parse_odd_chunk(event: bytes) -> _Chunk:
    """Decode an event that is no proper JSON: NaN and Infinity do occur, and are taken. Raises EngineBroken."""
    try:
        return msgspec.convert(json.loads(event), _Chunk)
    except (ValueError, RecursionError) as error:
        raise EngineBroken(f"an event is not a completion chunk ({type(error).__name__})") from None


def _leg_usage(usage: _Usage) -> LegUsage:
    details = usage.prompt_tokens_details
    return LegUsage(usage.prompt_tokens, usage.completion_tokens or 0, details.cached_tokens if details else None)


def _token_logprobs(logprobs: _Logprobs, ids: list[int], alternatives: int) -> tuple[TokenLogprob, ...]:
    if logprobs.content is not None:
        return _content_logprobs(logprobs.content, ids, alternatives)
    if len(logprobs.token_logprobs) != len(ids):
        raise EngineBroken(f"{len(logprobs.token_logprobs)} logprobs for {len(ids)} token ids")
    tops = logprobs.top_logprobs or [None] * len(ids)
    if len(tops) != len(ids):
        raise EngineBroken(f"{len(tops)} lists of alternatives for {len(ids)} token ids")
    return tuple(
        TokenLogprob(token_id, finite(logprob), _alternatives(top, alternatives))
        for token_id, logprob, top in zip(ids, logprobs.token_logprobs, tops, strict=True)
    )


def _content_logprobs(content: list[_TokenLogprob], ids: list[int], alternatives: int) -> tuple[TokenLogprob, ...]:
    if [one.token_id for one in content] != ids:
        raise EngineBroken("the logprobs are not those of the token ids")
    return tuple(
        TokenLogprob(one.token_id, finite(one.logprob), _pick(one.top_logprobs, alternatives)) for one in content
    )


def _pick(top: list[_TokenLogprob], count: int) -> tuple[tuple[int, float], ...]:
    return likeliest(((one.token_id, one.logprob) for one in top), count)


def _alternatives(top: dict[str, float | None] | None, count: int) -> tuple[tuple[int, float], ...]:
    """The ``count`` likeliest; the chosen token, which the engine always lists, is among them only if it belongs."""
    if not top or not count:
        return ()
    return likeliest(((_token_id(name), logprob) for name, logprob in top.items()), count)


def _token_id(name: str) -> int:
    digits = name.removeprefix("token_id:")
    if not (digits.isascii() and digits.isdigit()):
        raise EngineBroken("alternatives are not written as token ids")
    return int(digits)
