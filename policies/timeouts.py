"""How long to wait for the first token of an extend before somebody else goes on.

An MD that says nothing costs the client what it waits, so the wait follows from what MD has to do. It is many times
that, as an engine that is only slow must not be robbed of what it has begun.
"""

from dataclasses import dataclass

from policies.rules import RelayRules

MULTIPLE = 4.0
"""How many times as long as expected an extend may take."""
KV_LOAD_BYTES_PER_S = 1e9
"""Slow for an engine that loads KV out of its region's store."""


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
