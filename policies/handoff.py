"""When MD takes over from RLD, all at once or step by step, and how long its first token is waited for.

RLD is stopped for no MD that is cold: whatever the mode, MD's first extend of an answer is a warm leg. KV in the store
of MD's region is not in MD yet, and to load it, or to compute the prompt where it will not come, takes MD long; after
MD was lost, another one has to show that it answers. RLD writes on meanwhile.

One-shot hands every pending token over in that leg, and what RLD made since in the final: RLD is free soonest.
Catch-up extends in rounds. RLD writes on during each, so a round leaves as many tokens as RLD makes in one extend, and
the client waits only for the last, small one. Catch-up ends: a round that does not shrink what is pending is the last,
and so is round ``max_rounds``.

An MD that says nothing costs the client what it waits, so the wait for an extend's first token follows from what MD has
to do. It is many times that, as an engine that is only slow must not be robbed of what it has begun.
"""

from dataclasses import dataclass

from policies.rules import HandoffRules, RelayRules

MULTIPLE = 4.0
"""How many times as long as expected an extend may take."""
KV_LOAD_BYTES_PER_S = 1e9
"""Slow for an engine that loads KV out of its region's store."""


@dataclass(frozen=True, slots=True)
class Handoff:
    """How far one answer's hand-off is, when MD has the prompt's KV and no extend is running."""

    pending_tokens: int
    """Emitted and not yet held by MD."""
    rounds: int
    """Extends done so far."""
    previous_pending_tokens: int | None = None
    """``pending_tokens`` when the last round was decided; None before the first. A warm leg's length is no measure."""
    main_cold: bool = False
    """No MD has answered an extend of this answer, or none has since one was lost."""


@dataclass(frozen=True, slots=True)
class FinalNow:
    """Stop RLD, send MD everything and let it decode on."""

    reason: str


@dataclass(frozen=True, slots=True)
class ExtendBatch:
    """Send MD the next ``tokens`` pending tokens (at least one) while RLD goes on."""

    tokens: int
    reason: str


HandoffStep = FinalNow | ExtendBatch


def choose_step(
    handoff: Handoff, relay_load: float, extend_tokens_per_s: float | None, rules: HandoffRules
) -> HandoffStep:
    """Choose the next step of a hand-off. Called when the KV is ready, or is given up, and after each extend.

    ``relay_load``: of the RLD instance, as ``InstanceView.load``. ``extend_tokens_per_s``: MD's; None: not measured.
    """
    pending_tokens, previous_tokens = handoff.pending_tokens, handoff.previous_pending_tokens
    reason = _skip_reason(relay_load, rules)
    if handoff.main_cold:
        tokens = pending_tokens if reason else _batch(handoff, rules)
        return ExtendBatch(max(1, tokens), "main_cold")
    if reason:
        return FinalNow(reason)
    if pending_tokens <= _free_tokens(extend_tokens_per_s, rules):
        return FinalNow("small_rest")
    if handoff.rounds >= rules.max_rounds:
        return FinalNow("rounds_spent")
    if previous_tokens is not None and pending_tokens >= previous_tokens:
        return FinalNow("relay_outruns")
    return ExtendBatch(_batch(handoff, rules), "catch_up")


def _skip_reason(relay_load: float, rules: HandoffRules) -> str | None:
    """Say why there shall be no catch-up rounds; None: there may be."""
    if rules.mode == "one_shot":
        return "one_shot"
    return "relay_busy" if rules.mode == "auto" and relay_load >= rules.relay_load_high else None


def _batch(handoff: Handoff, rules: HandoffRules) -> int:
    rounds_left = max(1, rules.max_rounds - handoff.rounds)
    share = -(-handoff.pending_tokens // rounds_left)
    return min(handoff.pending_tokens, max(rules.batch_tokens, share))


def _free_tokens(extend_tokens_per_s: float | None, rules: HandoffRules) -> float:
    """Tokens that MD may recompute in the final extend without a wait that anybody sees."""
    if extend_tokens_per_s is None:
        return rules.threshold_tokens
    return max(rules.threshold_tokens, extend_tokens_per_s * rules.free_gap_s)


# How long to wait


@dataclass(frozen=True, slots=True)
class Extend:
    """What is known of an extend when it is sent. ``tokens_per_s``: MD's measured speed; None: not measured."""

    tokens: int
    """What MD has to compute for it."""
    ahead_tokens: int
    """What it has to compute for others that wait for their first token."""
    kv_bytes: int
    """KV that it may have to load."""
    tokens_per_s: float | None
    rtt_s: float = 0.0
    waiting: int = 0
    """Requests in its queue."""
    silences: int = 0
    """How often it let such a wait pass in the same answer."""


def first_token_wait_s(extend: Extend, rules: RelayRules) -> float:
    """Seconds after which an extend counts as lost; each silence before doubles them, up to the limit."""
    if extend.tokens_per_s is None:
        return rules.extend_timeout_s
    compute_s = (extend.tokens + extend.ahead_tokens) / extend.tokens_per_s
    expected_s = extend.rtt_s + compute_s + extend.kv_bytes / KV_LOAD_BYTES_PER_S
    patience = (1 + extend.waiting) * 2.0 ** min(extend.silences, 30)
    return min(rules.extend_timeout_s, max(rules.extend_floor_s, MULTIPLE * expected_s) * patience)
