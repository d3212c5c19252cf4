"""The seam between what engines have cached and the decisions that need to know it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from backends.kv.subscriber import EventSource


@dataclass(frozen=True, slots=True)
class CacheSpec:
    """An engine instance (or a region's KV store) whose cache is tracked.

    ``model`` is the base model that requests name; LoRA adapters are told apart by the lookup's ``lora``.
    ``sources`` empty: it publishes no events, so its contents are predicted from ``note_routed``.
    ``dp_size``: its data-parallel ranks, which its events name from ``first_rank`` on; here they count from 0. Each has
    a cache of its own, and either one source each, in their order, or all the same ones.
    ``boot_id`` changes when the engine restarts; None: it does not say.
    Raises ValueError for a block size or rank count below 1: hits cannot be told without them.
    """

    id: str
    model: str
    block_size_tokens: int
    sources: tuple[EventSource, ...] = ()
    dp_size: int = 1
    boot_id: str | None = None
    first_rank: int = 0
    filed_as: str = field(init=False, compare=False)
    """What its present engine process is filed under."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "filed_as", f"{self.id}@{self.boot_id or ''}")
        if self.block_size_tokens < 1:
            raise ValueError(f"instance {self.id}: block_size_tokens must be at least 1")
        if self.dp_size < 1:
            raise ValueError(f"instance {self.id}: dp_size must be at least 1")


class CacheHit(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """How much of a prompt one instance has cached, in whole blocks of that instance.

    ``tokens`` None: not known (never to be read as 0); ``at_least_tokens`` then tells what is known to be there.
    An engine computes at least the last prompt token itself, so ``tokens`` is below the prompt's length.
    A struct, as each decision makes one for every instance: a frozen dataclass takes eight times as long to make.
    """

    tokens: int | None
    """Tokens that the instance finds in its own cache, whatever the tier."""
    at_least_tokens: int
    predicted: bool
    """The figure comes from routing decisions, not from the engine's events."""
    ranks: tuple[int, ...] = ()
    """``at_least_tokens`` of each data-parallel rank, where there are several; the instance's is its best rank's."""


@dataclass(frozen=True, slots=True)
class InstanceStats:
    """State of one instance's entries. Ages are in seconds; None: nothing was seen yet."""

    model: str
    known: bool
    predicted: bool
    blocks: int
    update_age_s: float | None


@dataclass(frozen=True, slots=True)
class IndexStats:
    """State of the index in this process.

    ``counters`` holds counts since the start, by the names in ``gateway.index.types``; one that is absent is 0.
    ``redis_up``: see ``SharedRedis.up``.
    """

    instances: Mapping[str, InstanceStats]
    counters: Mapping[str, int]
    redis_up: bool


class PrefixIndex(Protocol):
    """What every instance has cached, by prefix.

    All methods but ``start``, ``name_ahead`` and ``aclose`` are local and never wait; call them on the loop's thread.
    Every implementation passes ``tests/conformance/index_suite.py``.
    """

    async def start(self) -> None:
        """Begin to follow the instances. Returns at once even when Redis or an engine is away."""
        ...

    def add_instance(self, spec: CacheSpec) -> None:
        """Track an instance, or replace its spec. Idempotent; may be called before ``start``.

        Another ``boot_id`` than before means a restarted engine: its entries are gone at once and events of the
        earlier process are not taken any more.
        """
        ...

    def remove_instance(self, instance_id: str) -> None:
        """Forget an instance and its entries. Unknown ids are ignored."""
        ...

    async def name_ahead(self, model: str, token_ids: Sequence[int], salt: str | None = None) -> None:
        """Do beside the event loop what takes long of the next ``lookup`` of a long prompt, this very sequence."""
        ...

    def lookup(
        self, model: str, token_ids: Sequence[int], salt: str | None = None, lora: str | None = None
    ) -> dict[str, CacheHit]:
        """Return the hit of every instance of ``model``, by instance id; O(tokens) to hash, then O(log tokens) each.

        ``token_ids`` as an ``array("I")`` saves a copy. Raises ValueError for ids outside 0..2^32-1.
        """
        ...

    def note_routed(
        self,
        instance_id: str,
        model: str,
        token_ids: Sequence[int],
        salt: str | None = None,
        lora: str | None = None,
        rank: int = 0,
    ) -> None:
        """Say that ``instance_id`` is about to hold these tokens, in the cache of one of its ranks.

        Makes entries with a time to live for instances without events; ignored for the others and for unknown ids.
        """
        ...

    def stats(self) -> IndexStats:
        """Return what is known and how fresh it is."""
        ...

    async def aclose(self) -> None:
        """Stop following; leases are given up so that another process takes over at once. Idempotent."""
        ...


COUNTERS: Mapping[str, str] = {
    "bad_frames": "messages that are not the agreed format",
    "dropped_notes": "predicted entries that other processes were not told of",
    "duplicates": "messages that came again",
    "endpoint_errors": "event endpoints that could not be used",
    "forged_frames": "messages out of order that the engine's replay buffer does not confirm",
    "frames": "event messages received",
    "gaps": "times that messages before the present one were missing",
    "ignored_blocks": "blocks of sliding-window or state groups, and blocks on other machines",
    "leases_taken": "times that this process became the one to follow an engine",
    "loads": "instances read from Redis",
    "lookups": "prompts looked up",
    "losses": "times that a rank's entries were dropped because its events could not be had",
    "opaque_blocks": "blocks whose key holds more than tokens, adapter and salt",
    "orphan_blocks": "blocks whose parent is not known",
    "redis_errors": "times that Redis did not answer",
    "replayed_frames": "messages from engines' replay buffers",
    "republished": "times that an instance was written to Redis again as a whole",
    "restarts": "engine restarts seen in the sequence of messages",
    "resumed": "instances gone on with from another process's records",
    "skipped_events": "events of a type that is not known",
    "unknown_removals": "removed blocks that were not there",
}
