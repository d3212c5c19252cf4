"""Values that decisions read and give back.

Everything is frozen, so one snapshot may be read by any number of requests. An instance id that is missing from
``Facts.hits``, or maps to None, means that nobody knows what that instance has cached; unknown is never zero.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

import msgspec

from policies.valley import PrefillCurve


class Role(StrEnum):
    """What an engine instance is for."""

    P = "P"
    RLD = "RLD"
    MD = "MD"


class Rng(Protocol):
    """Source of randomness for ties; ``random.Random`` is one."""

    def random(self) -> float:
        """Return a number in [0, 1)."""
        ...


class NoInstance(Exception):
    """Nothing can serve the request: no instance of ``role`` is left, for ``reason`` (snake_case)."""

    def __init__(self, role: Role, reason: str) -> None:
        super().__init__(f"no {role.value} instance: {reason}")
        self.role = role
        self.reason = reason


class Hit(msgspec.Struct, frozen=True, gc=False):
    """Known prefix of the prompt, in tokens: in the engine's own cache, and in the KV store of its region.

    ``predicted``: learnt from routing, not from the engine's events.
    A struct, as each decision makes one for every instance: a frozen dataclass takes eight times as long to make.
    """

    tokens: int
    store_tokens: int = 0
    predicted: bool = False

    @property
    def reach_tokens(self) -> int:
        """Longest prefix that the instance need neither compute nor fetch from another region."""
        return max(self.tokens, self.store_tokens)


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of one request before its plan is chosen."""

    model: str
    prompt_tokens: int
    hits: Mapping[str, Hit | None] = field(default_factory=dict)
    max_output_tokens: int | None = None
    predicted_output_tokens: int | None = None
    """An upper guess at the answer's length (see ``policies.output_length``); None: no idea."""
    unsplittable: str | None = None
    """Reason code of ``policies.eligibility``."""
    tenant: str = "default"
    session: str | None = None
    salted: bool = False
    """The tenant's or the adapter's KV is nobody else's to use."""
    ranks: Mapping[str, int] = field(default_factory=dict)
    """The data-parallel rank that would serve the request, for instances that have several; the hits are theirs."""


@dataclass(frozen=True, slots=True)
class InstanceView:
    """One engine instance as the snapshot saw it."""

    id: str
    role: Role
    model: str
    region: str
    healthy: bool = True
    draining: bool = False
    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    """Share of the KV memory in use, 0..1."""
    max_running: int = 256
    """Requests that the engine batches at once."""
    max_model_len: int | None = None
    fingerprint: str = ""
    """Other than "" for one whose greedy ids differ from its peers'; KV is never shared between different ones."""
    curve: PrefillCurve | None = None
    itl_s: float | None = None
    """Measured time between two tokens of one request; None: not measured."""
    streams_ids: bool = True
    judged: bool = True
    """False: canaries have not said yet with whom it may share KV. Its fingerprint is its own then."""
    leaks_salts: bool = False
    """It was seen to take KV of one cache salt for a prompt with another."""

    @property
    def load(self) -> float:
        """Requests in the engine over what it batches at once; above 1 they queue."""
        return (self.running + self.waiting) / self.max_running


@dataclass(frozen=True, slots=True)
class LinkView:
    """One directed WAN link between two regions, from the ledger. ``rate_bytes_per_s`` must be positive while up."""

    source: str
    dest: str
    rate_bytes_per_s: float
    queued_bytes: int = 0
    """Bytes of open transfers that have not crossed yet, without those that let new ones go first."""
    rtt_s: float = 0.0
    up: bool = True
    open_transfers: int | None = None
    """How many transfers share the queued bytes; None: the link does not say."""
    can_stop: bool = True
    """Closing a transfer ends its traffic; otherwise what was begun crosses whole."""
    reports_progress: bool = True
    """Bytes leave the queue as they cross; otherwise a transfer counts whole until it has ended."""
    overlaps_prefill: bool = True
    """A transfer begins with P; otherwise when P has ended."""
    lends: bool = False
    """RLDs in ``source`` read a prompt's KV out of P's memory, whatever brings it to ``dest``."""
    trusted: bool = True
    """False: KV that crossed was of no use to the request's model. It is not up then, whatever is measured."""


@dataclass(frozen=True, slots=True)
class Alignment:
    """Token-weighted cache hits of P and of MD for the same prompts, over a fading window."""

    prompt_tokens: float = 0.0
    prefill_hit_tokens: float = 0.0
    main_hit_tokens: float = 0.0
    at_s: float = 0.0

    @property
    def gap(self) -> float:
        """How far MD's hit rate is behind P's; 0 where MD is level or ahead, or nothing was seen."""
        if self.prompt_tokens <= 0:
            return 0.0
        return max(0.0, (self.prefill_hit_tokens - self.main_hit_tokens) / self.prompt_tokens)


@dataclass(frozen=True, slots=True)
class SingularUse:
    """Decided requests and the singular ones among them, both fading at the same speed."""

    used: float = 0.0
    total: float = 0.0
    at_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is known of one model's pools and links at ``now_s``. Links are keyed (source region, dest region)."""

    instances: tuple[InstanceView, ...]
    links: Mapping[tuple[str, str], LinkView]
    kv_bytes_per_token: int
    kv_chunk_tokens: int = 256
    """Granularity of the KV store: only full chunks cross, the rest of a prompt is recomputed."""
    prefix_cache_effective: bool = True
    """False for models whose engines never reuse a prefix; then hits say nothing and KV cannot be handed over."""
    alignment: Alignment = Alignment()
    singular: SingularUse = SingularUse()
    sessions: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Instances that served a session's last turns, by session key."""
    now_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Estimate:
    """What it takes to bring MD the KV that it lacks. None where MD's hit is unknown."""

    missing_tokens: int | None
    """Prompt tokens in full chunks that must cross."""
    tail_tokens: int
    """Tokens after the last full chunk, recomputed by MD."""
    wan_bytes: int | None
    queue_s: float | None
    """Wait for bytes of other transfers."""
    transfer_s: float | None
    rtt_s: float
    total_s: float | None
    worst_s: float
    """``total_s`` if MD had nothing."""


@dataclass(frozen=True, slots=True)
class Placement:
    """How one role was filled. The lists hold one value in [0, 1] for each of ``ids``."""

    role: Role
    chosen: str
    ids: list[str]
    totals: list[float]
    """Weighted means of the signals."""
    signals: Mapping[str, list[float]]
    rejected: Mapping[str, str]
    """Instance id to the reason of the filter that left it out."""
