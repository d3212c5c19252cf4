"""The singular exception: rare requests that end at RLD, the budget that keeps them rare, and the alignment guard.

The budget is a share of all requests, both counted with the same fading. One more singular request is allowed while,
with it counted, the share holds. Then the share holds in the faded counts at every moment, and so it also holds in the
plain counts: the plain counts are sums of the faded ones with weights that are not negative.

When requests end at RLD, MD lacks what P has; the next turns then hit low at MD, so more of them need RLD, and so on.
The guard compares the two hit rates, weighted by tokens, and shuts the exception while the gap is open.
"""

import math
from dataclasses import dataclass

from policies.plans import Plan
from policies.rules import AlignmentRules, Rules, SingularRules
from policies.types import Alignment, Facts, Hit, InstanceView, SingularUse, Snapshot

UNUSED_BUDGET = SingularUse(used=0.0, total=1e9)
"""For questions without a history ("would this request be singular?"): a budget with all the room there is."""


@dataclass(frozen=True, slots=True)
class EarlyEnd:
    """What to do with the transfer of a request that RLD finished before the KV had crossed."""

    stop_transfer: bool
    reason: str


def fade_factor(since_s: float, now_s: float, window_s: float) -> float:
    """Weight that something counted at ``since_s`` still has; 1 if the clock went back."""
    return math.exp(-max(0.0, now_s - since_s) / window_s)


def count_request(use: SingularUse, singular: bool, now_s: float, rules: SingularRules) -> SingularUse:
    faded = fade_use(use, now_s, rules)
    return SingularUse(faded.used + singular, faded.total + 1, faded.at_s)


def count_converted(use: SingularUse, now_s: float, rules: SingularRules) -> SingularUse:
    """Count a request as singular that was counted before as something else: its transfer was stopped."""
    faded = fade_use(use, now_s, rules)
    return SingularUse(faded.used + 1, faded.total, faded.at_s)


def fade_use(use: SingularUse, now_s: float, rules: SingularRules) -> SingularUse:
    """Bring the counts to ``now_s``."""
    keep = fade_factor(use.at_s, now_s, rules.budget_window_s)
    return SingularUse(use.used * keep, use.total * keep, max(use.at_s, now_s))


def budget_used(use: SingularUse, rules: SingularRules) -> float:
    """Return the share of the budget that is used: 1 when nothing is left. Both counts fade alike, so it needs no time.

    0 also where there is no budget to use.
    """
    allowed = rules.budget * use.total
    return use.used / allowed if allowed > 0 else 0.0


def refuse_singular(
    facts: Facts, main_hit: Hit | None, answer_tokens: int | None, snapshot: Snapshot, rules: Rules, counted: bool
) -> str | None:
    """Return why a request may not end at RLD, or None when it may.

    ``answer_tokens``: its expected or true length; None: unknown. ``counted``: the budget's total includes it already.
    """
    limits = rules.singular
    if not limits.enabled:
        return "disabled"
    if main_hit is None:
        return "hit_unknown"
    reach = min(main_hit.reach_tokens, facts.prompt_tokens)
    if facts.prompt_tokens - reach < limits.min_uncached_tokens:
        return "short_uncached"
    if reach > limits.max_hit * facts.prompt_tokens:
        return "high_hit"
    if answer_tokens is None:
        return "answer_unknown"
    if answer_tokens >= limits.max_output_tokens:
        return "long_answer"
    if not is_aligned(snapshot.alignment, rules.alignment):
        return "misaligned"
    use = fade_use(snapshot.singular, snapshot.now_s, limits)
    if use.used + 1 > limits.budget * (use.total + (0 if counted else 1)):
        return "budget_spent"
    return None


def relay_time_s(answer_tokens: int, relay: InstanceView, rules: SingularRules) -> float:
    """Seconds that RLD needs for the answer."""
    return answer_tokens * (rules.assumed_itl_s if relay.itl_s is None else relay.itl_s)


def relay_finished_first(plan: Plan, facts: Facts, answer_tokens: int, snapshot: Snapshot, rules: Rules) -> EarlyEnd:
    """Decide over the open transfer when RLD ended the answer, with ``answer_tokens``, before MD had the KV.

    It completes, so that MD is ready for the next turn, unless the request is one that may be singular. ``snapshot`` is
    the present one; its ``singular.total`` must include this request. A stopped transfer is ``count_converted``. Where
    a transfer cannot be stopped, to stop it saves nothing and costs the next turn its cache. Nor is one stopped
    whose plan was no relay.
    """
    if not plan.relays_first or plan.main is None:
        return EarlyEnd(stop_transfer=False, reason="unplanned")
    link = snapshot.links.get(plan.link) if plan.link is not None else None
    if link is not None and not link.can_stop:
        return EarlyEnd(stop_transfer=False, reason="cannot_stop")
    refused = refuse_singular(facts, facts.hits.get(plan.main), answer_tokens, snapshot, rules, counted=True)
    if refused is None:
        return EarlyEnd(stop_transfer=True, reason="singular_live")
    return EarlyEnd(stop_transfer=False, reason=refused)


# The alignment guard


def observe_hits(
    seen: Alignment,
    prompt_tokens: int,
    prefill_hit: Hit | None,
    main_hit: Hit | None,
    now_s: float,
    rules: AlignmentRules,
) -> Alignment:
    """Count one decided request's hits at its P and its MD. A request with an unknown hit says nothing."""
    if prefill_hit is None or main_hit is None:
        return seen
    keep = fade_factor(seen.at_s, now_s, rules.window_s)
    return Alignment(
        prompt_tokens=seen.prompt_tokens * keep + prompt_tokens,
        prefill_hit_tokens=seen.prefill_hit_tokens * keep + min(prefill_hit.reach_tokens, prompt_tokens),
        main_hit_tokens=seen.main_hit_tokens * keep + min(main_hit.reach_tokens, prompt_tokens),
        at_s=max(seen.at_s, now_s),
    )


def is_aligned(seen: Alignment, rules: AlignmentRules) -> bool:
    """Tell whether MD is level with P, within the bound."""
    return seen.gap <= rules.bound
