"""The numbers that an operator may set, with their defaults, limits and meaning.

Parsed from JSON or YAML objects, refused whole when any field is wrong. The only pipelines that can be written are the
ones that end at MD; RLD alone exists through the ``singular`` section and within its budget.
"""

import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from policies.placement_rules import PlacementRules
from policies.section import AT, Name, Seconds, Section, Share, add_choices
from policies.tenant_rules import (
    CacheRules,
    ClientFieldRules,
    LimitRules,
    ModelRules,
    OverflowRules,
    PromptRules,
    SplittingRules,
    TraceRules,
)

Pipeline = Literal["direct", "relay"]


class BadRules(Exception):
    """Rules were refused. ``path`` is the field, like ``handoff.threshold_tokens``; empty for the whole object."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}" if path else message)
        self.path = path
        self.message = message


class HandoffRules(Section, frozen=True):
    """How MD takes over from RLD."""

    mode: Annotated[
        Literal["auto", "one_shot", "catch_up"],
        Meta(
            description="auto: one_shot while RLD is busy, else catch_up. In every mode RLD goes on until an MD has "
            "answered an extend, and so has the prompt's KV in its memory; one_shot hands all pending tokens over in "
            "it, and the rest in the final."
        ),
    ] = "auto"
    threshold_tokens: Annotated[
        int,
        Meta(
            ge=0,
            le=100_000,
            description="Catch-up goes on while more tokens than this are pending; the client waits for the extend of "
            "what is left, so small values (8 to 16) keep the joint unseen. 0: until nothing is pending.",
        ),
    ] = 16
    batch_tokens: Annotated[
        int, Meta(ge=1, le=1_000_000, description="Most tokens of one catch-up extend, unless rounds run out first.")
    ] = 512
    max_rounds: Annotated[
        int,
        Meta(
            ge=1,
            le=100,
            description="Extends of one hand-off, the first one included, before the final is sent anyway.",
        ),
    ] = 8
    relay_load_high: Annotated[
        float,
        Meta(ge=0, le=100, description="In auto mode, an RLD with at least this load is freed by one_shot. 0: always."),
    ] = 0.75
    reserve_s: Annotated[
        float,
        Meta(
            ge=0,
            le=10,
            description="While MD catches up, RLD's tokens are given out a little more slowly, at most this much late; "
            "what is in reserve then bridges the joint. 0: every token is given out at once.",
        ),
    ] = 0.08
    free_gap_s: Annotated[
        float,
        Meta(
            ge=0,
            le=10,
            description="What MD extends within this time may be left to the final extend. 0: threshold only.",
        ),
    ] = 0.005


class SingularRules(Section, frozen=True):
    """The one exception: RLD ends the answer alone and the KV does not cross."""

    enabled: Annotated[bool, Meta(description="False: every pipeline ends at MD.")] = True
    min_uncached_tokens: Annotated[
        int, Meta(ge=1, le=100_000_000, description="MD must lack at least this many prompt tokens.")
    ] = 32_768
    max_hit: Annotated[
        Share,
        Meta(description="MD's known hit, as a share of the prompt, must not be above this. 1: any hit; 0: none."),
    ] = 0.2
    max_output_tokens: Annotated[
        int, Meta(ge=1, le=100_000, description="The answer must be expected to be shorter than this.")
    ] = 500
    budget: Annotated[
        float, Meta(ge=0, le=0.25, description="Largest share of all requests that may be singular. 0: none.")
    ] = 0.04
    budget_window_s: Annotated[
        Seconds, Meta(description="Requests fade from the budget's count with this time constant.")
    ] = 3600.0
    assumed_itl_s: Annotated[Seconds, Meta(description="Time per token of an RLD that was not measured yet.")] = 0.03


class AlignmentRules(Section, frozen=True):
    """Keeps MD's cache level with P's."""

    window_s: Annotated[Seconds, Meta(description="Hits fade from the comparison with this time constant.")] = 600.0
    bound: Annotated[
        Share, Meta(description="While MD's hit rate is more than this behind P's, no request is singular. 1: never.")
    ] = 0.05


class RelayRules(Section, frozen=True):
    """Limits and waits of a running request."""

    load_max: Annotated[
        float,
        Meta(gt=0, le=100, description="RLD instances with at least this load take no new request: it goes direct."),
    ] = 1.0
    fused: Annotated[
        Literal["auto", "never", "always"],
        Meta(
            description="P itself writes on in RLD's place while the KV crosses: its next token is there sooner, as no "
            "KV moves to an RLD, but it stutters while P computes other prompts. auto: where P has room; always: "
            "however busy it is. RLDs stand by for a P that fails, or gets busy in auto mode; it works without any."
        ),
    ] = "never"
    fused_running_max: Annotated[
        int,
        Meta(
            ge=1,
            le=10_000,
            description="In auto mode P goes on where fewer requests than this run or wait in it, and RLD takes over "
            "from one with more than twice as many.",
        ),
    ] = 4
    first_token_timeout_s: Annotated[Seconds, Meta(description="Wait for a leg's first token.")] = 600.0
    extend_timeout_s: Annotated[
        Seconds,
        Meta(
            description="Longest wait for a catch-up or final extend's first token; then another MD or RLD goes on. It "
            "holds while MD's speed is not measured; after that the wait is a few times what is expected of MD. Relays "
            "wait as long for MD's KV before MD computes the prompt itself."
        ),
    ] = 30.0
    extend_floor_s: Annotated[
        Seconds, Meta(description="Least such wait, however little MD has to do; never more than extend_timeout_s.")
    ] = 3.0
    idle_timeout_s: Annotated[Seconds, Meta(description="Wait for the next token of a running leg.")] = 60.0
    keepalive_s: Annotated[Seconds, Meta(description="Silence after which the client gets a sign of life.")] = 10.0
    max_attempts: Annotated[
        int,
        Meta(
            ge=1,
            le=100,
            description="Legs lost in a row that an answer survives; a token that is shown ends the row.",
        ),
    ] = 6
    transfer_retry_backoff_s: Annotated[
        Seconds,
        Meta(
            description="First wait before a failed KV transfer is opened again, or a role that nobody could fill is "
            "tried again; doubles each time."
        ),
    ] = 0.5
    transfer_retry_backoff_max_s: Annotated[Seconds, Meta(description="Longest such wait.")] = 15.0
    kv_first_chunk_s: Annotated[
        Seconds,
        Meta(
            description="After P's end the first chunk of its KV must be seen in its region's store within this time, "
            "while the link is up; then the transfer is given up and MD computes the prompt."
        ),
    ] = 10.0
    store_wait_s: Annotated[
        float,
        Meta(
            ge=0,
            le=60,
            description="Longest wait after P's end for its KV to be seen in its region's store, before RLD begins: "
            "what is not there RLD computes again. 0: none. Only bridges tell what is there.",
        ),
    ] = 0.5
    store_wait_tokens: Annotated[
        int,
        Meta(
            ge=0,
            le=10_000_000,
            description="So many prompt tokens RLD computes again rather than wait for their KV to be seen.",
        ),
    ] = 1024
    kv_least_load_tokens: Annotated[
        int,
        Meta(
            ge=0,
            le=100_000,
            description="Engines may compute up to so many tokens though their KV is in the store: that is no fault of "
            "the KV. Where they are set to load only more (LMCache's `min_retrieve_tokens`), as many.",
        ),
    ] = 256

    def __post_init__(self) -> None:
        if self.transfer_retry_backoff_max_s < self.transfer_retry_backoff_s:
            raise ValueError("transfer_retry_backoff_max_s is below transfer_retry_backoff_s")


class OutputLengthRules(Section, frozen=True):
    """How long an answer is expected to be."""

    quantile: Annotated[
        float, Meta(gt=0, lt=1, description="The expected length is this quantile of the tenant's past answers.")
    ] = 0.9
    min_samples: Annotated[int, Meta(ge=1, le=1_000_000, description="Answers to see before anything is expected.")] = (
        20
    )
    memory_samples: Annotated[
        int, Meta(ge=1, le=10_000_000, description="Older answers fade; about this many count.")
    ] = 2000


class SloRules(Section, frozen=True):
    """What the service promises; a request within it counts as good."""

    ttft_s: Annotated[
        Seconds | None, Meta(description="Time to the first token, the wait for a place included. null: none.")
    ] = 5.0
    gap_s: Annotated[
        Seconds | None, Meta(description="Longest silence inside an answer; also bounds direct. null: none.")
    ] = None
    total_s: Annotated[
        Seconds | None,
        Meta(
            description="Time to the end of the answer. null: none. `pdd_slo_requests_total` counts the answers that "
            "keep all three, and those that do not."
        ),
    ] = 30.0

    def judge(self, ttft_s: float, total_s: float, gap_s: float) -> bool | None:
        """Tell whether a finished answer kept what is promised; None: nothing is."""
        promises = ((self.ttft_s, ttft_s), (self.total_s, total_s), (self.gap_s, gap_s))
        kept = [seen_s <= promised_s for promised_s, seen_s in promises if promised_s is not None]
        return all(kept) if kept else None

    def judge_failure(self) -> bool | None:
        """Return the same of an answer that failed by no fault of the client's."""
        return self.judge(math.inf, math.inf, math.inf)


NO_SLO = SloRules(ttft_s=None, total_s=None)


class Rules(Section, frozen=True):
    """All rules of one tenant."""

    models: ModelRules = ModelRules()
    regions: Annotated[
        Annotated[tuple[Name, ...], Meta(min_length=1, max_length=64)] | None,
        Meta(
            description="Regions where this tenant's prompts, tokens and KV may be; engines elsewhere are never asked, "
            "and no KV goes there. null: any."
        ),
    ] = None
    priority: Annotated[
        Literal["low", "normal", "high"], Meta(description="Whose requests wait less when all cannot be served.")
    ] = "normal"
    limits: LimitRules = LimitRules()
    cache: CacheRules = CacheRules()
    client_fields: ClientFieldRules = ClientFieldRules()
    prompts: PromptRules = PromptRules()
    debug: Annotated[
        bool,
        Meta(
            description="True: answers name their plan and its reason, and x-pdd-trace is followed; that tells of "
            "caches and instances. Always so where no keys are asked for."
        ),
    ] = False
    trace: TraceRules = TraceRules()
    splitting: SplittingRules = SplittingRules()
    overflow: OverflowRules = OverflowRules()
    pipelines: Annotated[
        tuple[Pipeline, ...],
        Meta(
            min_length=1,
            max_length=2,
            description="[direct]: RLD is never used. [relay]: direct only where a relay is impossible.",
        ),
    ] = ("direct", "relay")
    direct_wan_bound_s: Annotated[
        float,
        Meta(
            ge=0,
            le=3600,
            description="Direct when the KV that MD lacks is there within this time after P's end. "
            "0: only when nothing crosses.",
        ),
    ] = 0.5
    direct_classic: Annotated[
        bool, Meta(description="True: direct never shows P's token; every token is MD's, after the KV has crossed.")
    ] = False
    handoff: HandoffRules = HandoffRules()
    singular: SingularRules = SingularRules()
    alignment: AlignmentRules = AlignmentRules()
    placement: PlacementRules = PlacementRules()
    relay: RelayRules = RelayRules()
    output_length: OutputLengthRules = OutputLengthRules()
    slo: SloRules = SloRules()

    def __post_init__(self) -> None:
        if len(set(self.pipelines)) != len(self.pipelines):
            raise ValueError("pipelines names one twice")


ASKED_PLANS: Mapping[str, Mapping[str, Any]] = {
    "naive": {"pipelines": ("direct",), "direct_classic": True, "direct_wan_bound_s": 3600.0},
    "direct": {"pipelines": ("direct",)},
    "relay": {"pipelines": ("relay",), "direct_wan_bound_s": 0.0},
}
"""What a caller may ask for by name, to compare; ``naive``: MD makes every token once the KV has crossed."""


def ask_plan(rules: Rules, asked: str) -> Rules:
    """Return rules narrowed to a plan of ``ASKED_PLANS``. Raises BadRules where it is none, or not allowed."""
    changes = ASKED_PLANS.get(asked)
    if changes is None:
        raise BadRules("", f"{asked!r} is none of {', '.join(ASKED_PLANS)}")
    if changes["pipelines"][0] not in rules.pipelines:
        raise BadRules("pipelines", f"has no {changes['pipelines'][0]!r}")
    return msgspec.structs.replace(rules, **changes)


T = TypeVar("T", bound=Section)

_UNKNOWN = re.compile(r"unknown field `(?P<name>[^`]*)`")


def parse_rules(obj: object) -> Rules:
    """Turn a parsed JSON or YAML object into rules; absent fields take their defaults. Raises BadRules."""
    return convert_rules(obj, Rules, "")


def convert_rules(obj: object, kind: type[T], within: str) -> T:
    """Turn an object into a section of the rules, which stands at the path ``within``. Raises BadRules."""
    try:
        return msgspec.convert(obj, kind)
    except msgspec.ValidationError as error:
        raise _bad_rules(add_choices(str(error), kind), within) from None


def _bad_rules(text: str, within: str) -> BadRules:
    message, _, place = text.partition(AT)
    unknown = _UNKNOWN.search(message)
    parts = [within, place.rstrip("`").removeprefix("."), unknown["name"] if unknown else ""]
    return BadRules(".".join(part for part in parts if part), message)
