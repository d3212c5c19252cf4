"""What is known of a model beside its engines."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What a plan needs to know of a model beside its engines."""

    kv_bytes_per_token: int
    context_tokens: int
    cache_effective: bool
    kv_name: str
    """What the KV stores call it."""


def store_id(region: str, model: str) -> str:
    """Name under which the index knows a model's part of a region's KV store."""
    return f"store:{region}:{model}"
