"""A prefill leg whose KV another engine will fetch over NIXL, in vLLM's dialect.

vLLM tells where the KV is in ``kv_transfer_params`` of a whole answer only. What it tells goes to the other engine
unread: its fields differ by version.
"""

from typing import Any

import msgspec
import orjson

from backends.engines.dialect import refusal
from backends.engines.http_engine import MAX_REFUSAL_BYTES, post_leg, retry_after_s
from backends.engines.vllm_completions import leg_fields, rank_header
from backends.errors import EngineBroken, EngineFailed
from backends.transport.client import HttpOrigin
from backends.types import EngineFinish, LegChunk, LegRequest, LegUsage

_ASKED = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
_FINISHES: dict[str | None, EngineFinish] = {"stop": "stop", "length": "length"}


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _Choice(msgspec.Struct):
    token_ids: list[int] | None = None
    finish_reason: str | None = None


class _Whole(msgspec.Struct):
    choices: list[_Choice]
    usage: _Usage | None = None
    kv_transfer_params: dict[str, Any] | None = None


async def lend(origin: HttpOrigin, leg: LegRequest) -> LegChunk:
    """Run the leg, see ``Engine.generate``, and return all of it as one chunk."""
    response = await post_leg(origin, "/v1/completions", encode_lending(leg), leg, rank_header(leg))
    try:
        body = await response.body(MAX_REFUSAL_BYTES)
    finally:
        await response.aclose()
    if response.status != 200:
        raise refusal(response.status, body, retry_after_s(response))
    return decode_lending(body)


def encode_lending(leg: LegRequest) -> bytes:
    """Build the body: one token, not streamed, and the wish to be read from."""
    body = leg_fields(leg)
    for name in ("stream_options", "min_tokens", "logprobs"):
        body.pop(name, None)
    return orjson.dumps(body | {"stream": False, "max_tokens": 1, "kv_transfer_params": _ASKED})


def decode_lending(body: bytes) -> LegChunk:
    """The whole answer as one chunk. Raises EngineBroken or EngineFailed."""
    try:
        whole = msgspec.json.decode(body, type=_Whole)
        choice = whole.choices[0]
    except (msgspec.DecodeError, UnicodeDecodeError, IndexError, RecursionError):
        raise EngineBroken("the answer is not a completion") from None
    finish = _FINISHES.get(choice.finish_reason)
    if finish is None:
        raise EngineFailed("the prefill leg did not end properly")
    usage = None
    if whole.usage is not None:
        details = whole.usage.prompt_tokens_details
        cached = details.cached_tokens if details else None
        usage = LegUsage(whole.usage.prompt_tokens, whole.usage.completion_tokens, cached)
    return LegChunk(tuple(choice.token_ids or ()), None, finish, None, usage, whole.kv_transfer_params or None)
