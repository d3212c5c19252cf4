"""Values that cross the seam between the gateway and anything that computes or moves KV.

Units are in the names. Token ids are plain ints. Nothing here does I/O.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import msgspec

EngineFinish = Literal["stop", "length", "abort", "error"]
"""Why an engine ended one leg, in vLLM's words. ``stop`` covers EOS and ``stop_token_ids``."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling fields that a decode leg carries as the client gave them; None means "not given"."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Mapping[str, float] | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    """How many alternatives per position to report; None: no logprobs, 0: the chosen token only."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Vendor fields that the engine understands and the gateway does not (structured output and the like)."""


class LegRequest(msgspec.Struct, frozen=True):
    """One engine call: continue ``prompt`` by at most ``max_tokens`` tokens.

    ``request_id`` is made by the gateway, new for each attempt. ``max_tokens`` None: the engine's own default applies.
    """

    request_id: str
    model: str
    prompt: Sequence[int]
    max_tokens: int | None
    min_tokens: int = 0
    sampling: Sampling = Sampling()
    cache_salt: str | None = None
    priority: int | None = None
    data_parallel_rank: int | None = None
    """Which of the engine's data-parallel ranks shall run it, from 0 on; None: the engine chooses.

    A wish: an adapter whose engine cannot be told leaves it out.
    """
    first_token_timeout_s: float = 600.0
    idle_timeout_s: float = 60.0
    lends_kv: bool = False
    """The engine keeps the prompt's KV for one other engine; a chunk brings the ``kv_ticket`` that it is got by."""
    kv_ticket: Mapping[str, Any] | None = None
    """Where this very prompt's KV is, as the leg that lent it was told. It is good once, and for this prompt only."""
    trace_headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    """W3C trace context that the engine shall work under, as HTTP headers."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probability of one emitted token and of its alternatives, by token id; never NaN or infinite."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class LegUsage:
    """Token counts as the engine reports them; ``cached_tokens`` None: the engine does not say."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None = None


class LegChunk(msgspec.Struct, frozen=True):
    """One streamed piece of a leg: zero or more token ids, and what came with them.

    The id that ends an answer and its ``finish_reason`` may come in two pieces, or the reason not at all.
    """

    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None
    finish_reason: EngineFinish | None = None
    stop_reason: int | str | None = None
    usage: LegUsage | None = None
    kv_ticket: Mapping[str, Any] | None = None
    """See ``LegRequest.lends_kv``."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a probe learnt of an engine. None: it does not say."""

    models: tuple[str, ...]
    max_model_len: int | None
    block_size_tokens: int | None
    streams_token_ids: bool
    boot_id: str | None = None
    """Changes when the engine process restarts."""
    event_sources: tuple[tuple[str, str | None], ...] = ()
    """ZMQ endpoints of its KV events and of their replay, one pair for each data-parallel rank, in their order."""
    data_parallel_size: int = 1
    """Ranks that ``LegRequest.data_parallel_rank`` may name."""
    first_rank: int = 0
    """What its KV events call the first of them: above 0 where the deployment's other ranks have APIs of their own."""


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """Load of an engine as its own metrics tell it; ``kv_usage`` in 0..1. ``boot_id``: see ``Capabilities``.

    ``rank_requests``: running and waiting ones of each data-parallel rank; empty where there is one.
    """

    running: int
    waiting: int
    kv_usage: float
    boot_id: str | None = None
    rank_requests: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PathTraits:
    """What a KV path can and cannot do. ``can_stop``: closing a transfer ends its traffic.

    ``reports_progress``: it tells how far a transfer is before it is complete. ``overlaps_prefill``: a transfer may be
    opened while P still computes; otherwise it is opened when P's leg has ended. ``lends``: engines fetch KV from each
    other, so RLD needs a ticket of P's leg (``LegRequest.lends_kv``).
    """

    can_stop: bool
    reports_progress: bool
    overlaps_prefill: bool
    lends: bool = False


HeadLayout = Literal["packed", "split"]
"""How a chunk holds heads: each one's keys and values side by side, or all keys before all values."""
ShapeCount = Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]


class KvShape(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """KV of a model of which all layers are alike, as a store's chunks have it (``backends.kv.bridge.reshard``).

    ``heads``: KV heads over all ranks; ``head_bytes``: keys of one of them, for one layer and token. ``latent``: MLA,
    which no rank has a part of; ``heads`` is 1 then, and ``head_bytes`` the whole vector.
    """

    layout: Literal["packed", "split", "latent"]
    layers: ShapeCount
    heads: ShapeCount
    head_bytes: ShapeCount

    @property
    def token_bytes(self) -> int:
        """What one token adds, over all ranks, each head once."""
        return self.layers * self.heads * self.head_bytes * (1 if self.layout == "latent" else 2)


TransferPriority = Literal["waiting", "relay", "later"]
"""Who waits for KV: a client, for whom nobody writes meanwhile; an RLD, which writes meanwhile; nobody."""


StoreSide = Literal["source", "dest"]
"""The store that KV leaves, or the one that it comes to."""


class FoundKey(msgspec.Struct, frozen=True):
    """A key of a store, and the size of its value."""

    key: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class TransferRequest:
    """KV of ``token_ids`` that the receiving region shall have.

    ``dialect`` names how the store spells chunk keys (``backends.kv.bridge.keys``); ``model`` is the store's name of
    the model, ``served_model`` the engines'. ``prefill`` and ``main`` are the engines that have and want the KV, for
    paths on which engines fetch it themselves; their ranks: see ``LegRequest.data_parallel_rank``. ``kv_shape``: how
    the KV is cut among tensor-parallel ranks, None where that is not known.
    ``kv_groups``: groups of layers that a store may keep apart, by how many of the last tokens each needs, None: all.
    ``tenant``: a name for whose it is, which need not tell who that is; ``weight``: its share where several wait.
    ``checks_size``: KV that has not ``kv_bytes_per_token`` (0: what ``kv_shape`` makes) is not moved: KvWrongSize.

    ``dtype`` and ``hash_seed`` are those of ``KeyRequest``. ``world_size``: ranks of the sending engines,
    ``dest_world_size``: of the receiving ones, None: as many. ``kv_layout``: how chunks hold heads.
    ``separate_groups``: the stores keep groups of layers apart.
    """

    transfer_id: str
    dialect: str
    model: str
    token_ids: Sequence[int]
    chunk_tokens: int
    salt: str | None = None
    deadline_s: float = 600.0
    served_model: str = ""
    prefill: str | None = None
    main: str | None = None
    kv_bytes_per_token: int = 0
    prefill_rank: int | None = None
    main_rank: int | None = None
    priority: TransferPriority = "waiting"
    kv_shape: KvShape | None = None
    kv_groups: tuple[int | None, ...] = (None,)
    checks_size: bool = True
    tenant: str = ""
    weight: float = 1.0
    dtype: str = "float32"
    hash_seed: int | None = None
    world_size: int = 1
    dest_world_size: int | None = None
    kv_layout: HeadLayout = "packed"
    separate_groups: bool = False


@dataclass(frozen=True, slots=True)
class TransferProgress:
    """State of a KV transfer. ``wan_bytes`` counts what this transfer moved over the link so far.

    A path without a view of the link tells what the chunks amount to; one without progress tells 0.
    """

    state: Literal["open", "moving", "complete"]
    chunks_total: int
    chunks_done: int
    chunks_present: int
    """Chunks that the receiving store held already when the transfer was opened."""
    wan_bytes: int
    first_seen: bool = True
    """False: the first chunk is in neither store yet, as far as the path knows. A path that cannot tell says True."""
    chunk_bytes: int = 0
    """Size of a chunk in the sending store, of one rank; 0: not seen, or the path cannot tell."""
    chunks_seen: int | None = None
    """Chunks, from the first on, that either store was seen to hold; None: the path cannot tell."""


class LinkState(msgspec.Struct, frozen=True):
    """What a KV path has measured of its link, and what a bridge answers at ``GET /v1/link``.

    Rates and times are 0 while unknown.
    """

    rate_bytes_per_s: float
    queued_bytes: int
    rtt_s: float
    up: bool
    wan_bytes_total: int
    open_transfers: int | None = None
    """How many transfers share the queued bytes; None: it does not say."""
    queued_later_bytes: int = 0
    """Of the queued bytes, those that let new transfers go first, as nobody waits for them."""
    later_transfers: int = 0
    """Of the open transfers, those that let new ones go first."""
