"""The paths that requests are passed on at as they are. Nothing that a client sends becomes part of a URL."""

from collections.abc import Mapping
from typing import Literal

BodyFormat = Literal["json", "multipart"]

GENERATION_PATHS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/responses",
)
"""Passed on for the models of upstreams: the gateway answers these itself for its own, but for chats with media."""

PASSED_PATHS: Mapping[str, BodyFormat] = {
    "/v1/embeddings": "json",
    "/v1/rerank": "json",
    "/v1/score": "json",
    "/v1/moderations": "json",
    "/v1/audio/speech": "json",
    "/v1/audio/transcriptions": "multipart",
    "/v1/audio/translations": "multipart",
    "/v1/images/generations": "json",
    "/tokenize": "json",
    "/detokenize": "json",
}
"""Paths that only ever pass on, and how their bodies come. The model is a field of the body."""

SALTED_PATHS = frozenset({"/v1/chat/completions", "/v1/responses"})
"""Where an engine takes the tenant's cache salt as a field of the body."""
UNSALTED_PATHS = frozenset({"/v1/messages"})
"""Where an engine fills its prefix cache and takes no salt: not for tenants whose caches are kept apart."""

ALL_PATHS = (*GENERATION_PATHS, *PASSED_PATHS)
