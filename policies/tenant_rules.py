"""The rules of what a tenant may ask for, how much of it, and with whom it shares a cache."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from policies.section import Name, Section

LimitValue = Annotated[int, Meta(ge=1, le=10**12)]


class ModelRules(Section, frozen=True):
    """Which models there are for a tenant, and under which names."""

    allowed: Annotated[
        Annotated[tuple[Name, ...], Meta(max_length=1000)] | None,
        Meta(description="Models that may be asked for, aliases resolved. null: all."),
    ] = None
    aliases: Annotated[
        dict[Name, Name],
        Meta(max_length=1000, description="Other names for models: what a client may ask for, and what it gets."),
    ] = msgspec.field(default_factory=dict)


class LimitRules(Section, frozen=True):
    """How much a tenant may ask for, over all gateway processes."""

    requests_per_min: Annotated[
        LimitValue | None, Meta(description="Requests started in a minute. null: no limit.")
    ] = None
    tokens_per_min: Annotated[
        LimitValue | None, Meta(description="Prompt and answer tokens in a minute. null: no limit.")
    ] = None
    concurrent: Annotated[LimitValue | None, Meta(description="Requests running at once. null: no limit.")] = None
    wan_bytes_per_min: Annotated[
        LimitValue | None,
        Meta(
            description="Bytes of KV that may cross links in a minute. They are charged as they cross; who has used "
            "more gets a 429 until time has made up for it. null: no limit."
        ),
    ] = None
    wan_weight: Annotated[
        float,
        Meta(
            ge=0.01,
            le=100,
            description="Share of a link while several tenants' KV waits for it, beside others' 1. Only bridges share.",
        ),
    ] = 1.0
    max_prompt_tokens: Annotated[LimitValue | None, Meta(description="Longest prompt. null: what the model takes.")] = (
        None
    )
    max_output_tokens: Annotated[
        LimitValue | None, Meta(description="Longest answer that may be asked for. null: what the model gives.")
    ] = None


class CacheRules(Section, frozen=True):
    """Whose cached prefixes a tenant's requests can find."""

    group: Annotated[
        Name | None, Meta(description="Tenants that name the same group share cached KV. null: its own only.")
    ] = None


class TraceRules(Section, frozen=True):
    """Whether requests are kept as anonymous lines, for ``pdd simulate`` and ``pdd plan``."""

    record: Annotated[
        bool,
        Meta(
            description="True: each request leaves a line with its time, lengths, plan, waits and the keyed hashes of "
            "its prompt's blocks, its tenant and its session; no token and no text. See `trace` in the settings."
        ),
    ] = False


class ClientFieldRules(Section, frozen=True):
    """What becomes of fields that clients have no business to set."""

    internal: Annotated[
        Literal["refuse", "strip"],
        Meta(
            description="Fields that steer engines or name hosts, as kv_transfer_params, cache_salt, priority and "
            "api_base. refuse: the request is a 400. strip: it goes on without them."
        ),
    ] = "refuse"
    urls: Annotated[
        Literal["public", "any"],
        Meta(
            description="Addresses of images, files and tools in requests that are passed on, which servers may fetch. "
            "public: data, and http at hosts that are no private address or name. any: file and private ones too."
        ),
    ] = "public"


class PromptRules(Section, frozen=True):
    """How the text of prompts is read."""

    special_tokens: Annotated[
        Literal["text", "allow", "refuse"],
        Meta(
            description="Text of clients that spells a model's control tokens, like <|im_end|>. allow: it is read as "
            "those, as engines do. text: as text. refuse: a 400. Not for what is passed on; where an engine reads "
            "chats, text refuses, too."
        ),
    ] = "allow"


class SplittingRules(Section, frozen=True):
    """Which answers may be made by more than one engine, beside what always forbids it."""

    enabled: Annotated[bool, Meta(description="False: every answer comes from one engine, after its KV is there.")] = (
        True
    )
    allow: Annotated[
        tuple[Literal["seeded_sampling", "penalty_state"], ...],
        Meta(
            max_length=2,
            description="Split these too: seeded_sampling (the same seed may then give another answer), penalty_state "
            "(presence and frequency count from the joint on).",
        ),
    ] = ()
    refuse: Annotated[
        tuple[Literal["sampled", "tools", "logprobs"], ...],
        Meta(
            max_length=3,
            description="Do not split these: sampled (temperature above 0), tools (any tool is offered), logprobs.",
        ),
    ] = ()


class OverflowRules(Section, frozen=True):
    """When an external provider answers chats in place of the model's own engines."""

    model: Annotated[
        Name | None,
        Meta(description="One of the settings' `external`, by its model's name. null, or any other: never."),
    ] = None
    when: Annotated[
        Literal["no_instance", "overloaded", "always"],
        Meta(
            description="no_instance: no engine can take the request. overloaded: also when every main-decode instance "
            "that is up has at least `load_max`. Never while `regions` pins the tenant."
        ),
    ] = "no_instance"
    load_max: Annotated[
        float, Meta(gt=0, le=100, description="Running and waiting requests, as a share of the engine's batch.")
    ] = 1.0
