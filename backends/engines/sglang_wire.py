"""SGLang's dialect of ``/generate`` with token ids, without I/O: leg -> request body, SSE events -> leg chunks.

By default each event repeats all ids so far; with ``--incremental-streaming-output`` (formerly ``--stream-output``) it
holds the new ones only. ``completion_tokens`` tells which it is, so either works. A stream of text without
``output_ids`` cannot be used.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
import orjson

from backends.engines.dialect import IdTally, finite, likeliest
from backends.errors import BackendError, EngineBroken, EngineFailed, EngineRejected, EngineUnavailable, IdsMissing
from backends.types import EngineFinish, LegChunk, LegRequest, LegUsage, Sampling, TokenLogprob

GENERATE_PATH = "/generate"

NO_IDS = "the engine streams no output_ids: SGLang must be new enough, or started with --skip-tokenizer-init"

_PLAIN_SAMPLING = {
    "temperature": "temperature",
    "top_p": "top_p",
    "min_p": "min_p",
    "seed": "sampling_seed",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "repetition_penalty": "repetition_penalty",
}
_GRAMMARS = frozenset({"json_schema", "regex", "ebnf", "structural_tag"})
"""Vendor fields that ``sampling_params`` has under the same name."""


def encode_leg(leg: LegRequest, bootstrap: Mapping[str, Any] | None = None) -> bytes:
    """Build the body field by field; what was not given stays absent. Raises EngineRejected for unknown fields."""
    sampling = leg.sampling
    params = _encode_sampling(sampling)
    if leg.max_tokens is not None:
        params["max_new_tokens"] = leg.max_tokens
    if leg.min_tokens:
        params["min_new_tokens"] = leg.min_tokens
    body: dict[str, Any] = {
        "rid": leg.request_id,
        "input_ids": leg.prompt if isinstance(leg.prompt, list | tuple) else list(leg.prompt),
        "sampling_params": params,
        "stream": True,
    }
    if sampling.logprobs is not None:
        body |= {"return_logprob": True, "logprob_start_len": -1, "top_logprobs_num": sampling.logprobs}
    if leg.cache_salt is not None:
        body["extra_key"] = leg.cache_salt
    if leg.priority is not None:
        body["priority"] = leg.priority
    return orjson.dumps(body | dict(bootstrap or {}))


def _encode_sampling(sampling: Sampling) -> dict[str, Any]:
    fields = {
        theirs: value for ours, theirs in _PLAIN_SAMPLING.items() if (value := getattr(sampling, ours)) is not None
    }
    if sampling.top_k is not None:
        fields["top_k"] = sampling.top_k if sampling.top_k > 0 else -1
    if sampling.logit_bias:
        fields["logit_bias"] = dict(sampling.logit_bias)
    if sampling.stop_token_ids:
        fields["stop_token_ids"] = sampling.stop_token_ids
    if sampling.ignore_eos:
        fields["ignore_eos"] = True
    for name, value in sampling.extra.items():
        fields |= _encode_extra(name, value)
    return fields


def _encode_extra(name: str, value: Any) -> dict[str, Any]:
    if name in _GRAMMARS:
        return {name: value}
    if name == "response_format" and isinstance(value, dict):
        match value.get("type"):
            case "text":
                return {}
            case "json_object":
                return {"json_schema": '{"type":"object"}'}
            case "json_schema" if isinstance(value.get("json_schema"), dict):
                return {"json_schema": orjson.dumps(value["json_schema"].get("schema")).decode()}
    if name == "structured_outputs" and isinstance(value, dict):
        match {key: entry for key, entry in value.items() if entry is not None}:
            case {"json": dict() as schema, **others} if not others:
                return {"json_schema": orjson.dumps(schema).decode()}
            case {"json": str() as schema, **others} if not others:
                return {"json_schema": schema}
            case {"json_object": True, **others} if not others:
                return {"json_schema": '{"type":"object"}'}
            case {"regex": str() as regex, **others} if not others:
                return {"regex": regex}
            case {"grammar": str() as grammar, **others} if not others:
                return {"ebnf": grammar}
    raise EngineRejected(400, f"The field {name[:100]!r} is not supported by this model's engines.", name[:100])


Logprob = tuple[float | None, int, Any]


class _Meta(msgspec.Struct):
    finish_reason: dict[str, Any] | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int | None = None
    output_token_logprobs: list[Logprob] | None = None
    output_top_logprobs: list[list[Logprob] | None] | None = None


class _Event(msgspec.Struct):
    output_ids: list[int] | None = None
    meta_info: _Meta | None = None
    error: Any = None


_decode_event = msgspec.json.Decoder(_Event).decode


class GenerateDecoder:
    """Turns the events of one leg into chunks, and watches that no id is lost or repeated on the way."""

    def __init__(self, leg: LegRequest) -> None:
        sampling = leg.sampling
        self._asked_stops = frozenset(sampling.stop_token_ids)
        # SGLang looks for no stop token at all under ignore_eos; the leg ends here then.
        self._own_stops = self._asked_stops if sampling.ignore_eos else frozenset[int]()
        self._min_tokens = leg.min_tokens
        self._alternatives = sampling.logprobs
        self._tally = IdTally()
        self.is_done = False
        """The leg has ended properly."""

    def feed(self, event: bytes) -> LegChunk | None:
        """Return what the event tells, or None. Raises EngineBroken, or what a failure that it tells amounts to."""
        if self.is_done:
            return None
        if event == b"[DONE]":
            self._tally.end()
            self.is_done = True
            return None
        meta, ids, start = self._read(event)
        logprobs = self._logprobs(meta, ids, start)
        self._tally.add(len(ids))
        if (cut := self._find_own_stop(ids)) is not None:
            self._tally.tokens -= len(ids) - cut
            self.is_done = True
            usage = LegUsage(meta.prompt_tokens, self._tally.tokens, meta.cached_tokens)
            kept = None if logprobs is None else logprobs[:cut]
            return LegChunk(ids[:cut], kept, "stop", ids[cut - 1], usage)
        finish, stop_reason = self._read_finish(meta)
        if finish is None:
            return LegChunk(ids, logprobs) if ids else None
        self._tally.add(0, meta.completion_tokens)
        self._tally.finish()
        usage = LegUsage(meta.prompt_tokens, self._tally.tokens, meta.cached_tokens)
        return LegChunk(ids, logprobs, finish, stop_reason, usage)

    def _read(self, event: bytes) -> tuple[_Meta, tuple[int, ...], int]:
        """Return the event's facts, its new ids, and the place of the first of them in the whole answer."""
        found = parse_event(event, is_first=not self._tally.tokens)
        meta = found.meta_info
        if meta is None:
            raise EngineBroken("an event has no meta_info")
        if found.output_ids is None:
            if meta.completion_tokens > self._tally.tokens:
                raise IdsMissing(NO_IDS)
            return meta, (), self._tally.tokens
        ids, told = found.output_ids, meta.completion_tokens
        if len(ids) >= told:
            new = ids[self._tally.tokens : told]
        elif len(ids) == told - self._tally.tokens:
            new = ids
        else:
            raise IdsMissing(f"{told} tokens were made, ids of {self._tally.tokens + len(ids)} came")
        return meta, tuple(new), self._tally.tokens

    def _read_finish(self, meta: _Meta) -> tuple[EngineFinish | None, int | str | None]:
        reason = meta.finish_reason
        if reason is None:
            return None, None
        raise_abort(reason, is_first=not self._tally.tokens)
        match reason.get("type"):
            case "length":
                return "length", None
            case "stop":
                matched = reason.get("matched")
                return "stop", matched if isinstance(matched, str) or matched in self._asked_stops else None
        raise EngineFailed("an unknown finish_reason")

    def _find_own_stop(self, ids: tuple[int, ...]) -> int | None:
        """Return how many of the new ids belong to the answer, if one of them ends it."""
        before = self._tally.tokens - len(ids)
        for place, token in enumerate(ids, 1):
            if token in self._own_stops and before + place > self._min_tokens:
                return place
        return None

    def _logprobs(self, meta: _Meta, ids: tuple[int, ...], start: int) -> tuple[TokenLogprob, ...] | None:
        if self._alternatives is None or not ids:
            return None
        chosen = _slice(meta.output_token_logprobs, start, len(ids))
        tops = _slice(meta.output_top_logprobs, start, len(ids)) if self._alternatives else [None] * len(ids)
        if [entry[1] for entry in chosen] != list(ids):
            raise EngineBroken("the log-probabilities are those of other tokens")
        return tuple(
            TokenLogprob(
                entry[1], finite(entry[0]), likeliest(((one[1], one[0]) for one in top or ()), self._alternatives)
            )
            for entry, top in zip(chosen, tops, strict=True)
        )


def parse_event(event: bytes, *, is_first: bool) -> _Event:
    """Decode one event. Raises EngineBroken, or the failure that it tells; ``is_first``: in place of an answer."""
    try:
        found = _decode_event(event)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EngineBroken(f"an event is not one of /generate ({type(error).__name__})") from None
    if found.error is not None:
        raise _failure(found.error, is_first)
    return found


def raise_abort(reason: Mapping[str, Any], *, is_first: bool) -> None:
    """Raise what a finish_reason of type abort amounts to."""
    if reason.get("type") == "abort":
        raise _failure({"message": reason.get("message"), "code": reason.get("status_code")}, is_first)


def _failure(error: object, is_first: bool) -> BackendError:
    """Judge an error. One without a code is a request that SGLang could not take, which is a ValueError there."""
    fields = error if isinstance(error, dict) else {}
    message, code = fields.get("message"), fields.get("code")
    status = code if type(code) is int and 400 <= code <= 599 else 400 if code is None else 500
    if not is_first or status >= 500 or status == 429:
        if is_first and status in (429, 503):
            return EngineUnavailable(f"engine answered {status}")
        return EngineFailed(f"error event, code {status}")
    return EngineRejected(status, message if isinstance(message, str) else f"The engine answered {status}.")


def _slice(entries: list[Any] | None, start: int, count: int) -> list[Any]:
    """Return what belongs to the ``count`` new ids at ``start``: the list is that of all ids, or of the new ones."""
    entries = entries or []
    if len(entries) >= start + count:
        return entries[start : start + count]
    if len(entries) == count:
        return entries
    raise EngineBroken(f"{len(entries)} log-probabilities for {count} token ids")
