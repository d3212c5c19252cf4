"""The alignment guard: MD's cache must not fall behind P's.

When requests end at RLD, MD lacks what P has; the next turns then hit low at MD, so more of them need RLD, and so on.
The guard compares the two hit rates, weighted by tokens, and shuts the singular exception while the gap is open.
"""

import math

from policies.rules import AlignmentRules
from policies.types import Alignment, Hit


def fade_factor(since_s: float, now_s: float, window_s: float) -> float:
    """Weight that something counted at ``since_s`` still has; 1 if the clock went back."""
    return math.exp(-max(0.0, now_s - since_s) / window_s)


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
