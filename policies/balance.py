"""How many instances of each role the traffic wants, for autoscalers.

P computes prompts one after the other, so its work is seconds of prefill in each second. RLD and MD write many answers
at once, so theirs is the places and the KV memory that are taken, whichever is fuller; what waits counts, too.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from policies.singular import fade_factor
from policies.types import Facts, InstanceView, Role

BUSY = 0.8
"""Share of its work that an instance should have; the rest takes peaks up."""
WINDOW_S = 60.0
"""Prompts fade with this time constant: long enough for chance, short beside the start of an engine."""
FIRST_S = 1.0
"""Nothing can be said of a shorter time."""


@dataclass(frozen=True, slots=True)
class PrefillWork:
    """Seconds of prefill that requests took, fading. ``since_s``: of the first one; None: there was none."""

    seconds: float = 0.0
    at_s: float = 0.0
    since_s: float | None = None


def observe_prefill(work: PrefillWork, facts: Facts, prefill: InstanceView, now_s: float) -> PrefillWork:
    """Count one request that was given to ``prefill``; without a measured curve nothing is known of it.

    A hit that nobody knows counts as none: rather one instance too many.
    """
    if prefill.curve is None:
        return work
    hit = facts.hits.get(prefill.id)
    seconds = prefill.curve.at(max(1, facts.prompt_tokens - (hit.reach_tokens if hit else 0)))
    since_s = now_s if work.since_s is None else work.since_s
    faded = work.seconds * fade_factor(work.at_s, now_s, WINDOW_S)
    return PrefillWork(faded + seconds, max(work.at_s, now_s), since_s)


def busy_prefills(work: PrefillWork, now_s: float) -> float | None:
    """Return how many Ps the requests keep busy; None: no request whose prefill is known has come."""
    if work.since_s is None:
        return None
    seen = WINDOW_S * (1 - fade_factor(work.since_s, max(now_s, work.since_s + FIRST_S), WINDOW_S))
    return work.seconds * fade_factor(work.at_s, now_s, WINDOW_S) / seen


def wanted_instances(views: Iterable[InstanceView], prefills: float | None) -> dict[Role, float]:
    """Return how many instances each role should have; a role of which nothing is known is left out.

    ``prefills``: Ps that are busy, over all gateways.
    """
    wanted = {} if prefills is None else {Role.P: prefills / BUSY}
    for view in views:
        if view.role is not Role.P:
            wanted[view.role] = wanted.get(view.role, 0.0) + max(view.load, view.kv_usage) / BUSY
    return wanted
