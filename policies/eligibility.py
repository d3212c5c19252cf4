"""Which answers must be made by one engine alone, and why. Each prompt and each choice of a request is an answer.

A split answer is made by two engines that share no sampler state. What an engine remembers beside the KV (a grammar's
position, penalty counts, a random generator) is lost at the joint; a request that needs it is not split.
"""

from collections.abc import Callable
from dataclasses import dataclass

from policies.tenant_rules import SplittingRules


@dataclass(frozen=True, slots=True)
class RequestFeatures:
    """The fields of a request that decide whether its answers may be split."""

    structured_output: bool = False
    """JSON, regex, grammar or choice constraints."""
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    multi_token_bad_words: bool = False
    seeded: bool = False
    temperature: float | None = None
    """None: not given, and engines then sample."""
    thinking_budget: bool = False
    """A bound on the tokens of the reasoning, which an engine counts over its own output."""
    unknown_field: bool = False
    """A field of which is not known whether engines keep a state for it."""
    tools: bool = False
    """Tools are offered, called or not."""
    logprobs: bool = False
    """Log-probabilities of the answer's tokens."""
    max_tokens: int | None = None


Test = Callable[[RequestFeatures], bool]

UNSPLITTABLE: tuple[tuple[str, Test], ...] = (
    ("structured_output", lambda f: f.structured_output),
    ("penalty_state", lambda f: f.presence_penalty != 0 or f.frequency_penalty != 0),
    ("bad_words", lambda f: f.multi_token_bad_words),
    ("seeded_sampling", lambda f: f.seeded and f.temperature != 0),
    ("thinking_budget", lambda f: f.thinking_budget),
    ("unknown_field", lambda f: f.unknown_field),
    ("single_token", lambda f: f.max_tokens == 1),
)
"""Reason codes and their tests; the first that holds is the reason. repetition_penalty is absent on purpose: it counts
prompt tokens too, so an engine that gets the eager tokens as prompt applies it alike."""

OWN_ANSWER = frozenset({"single_token"})
"""Reasons under which P's token is the whole answer, so it is shown and nothing is split."""

REFUSABLE: tuple[tuple[str, Test], ...] = (
    ("sampled", lambda f: f.temperature != 0),
    ("tools", lambda f: f.tools),
    ("logprobs", lambda f: f.logprobs),
)
"""Reason codes that hold only where the rules name them."""

_NO_RULES = SplittingRules()


def unsplittable_reason(features: RequestFeatures, rules: SplittingRules = _NO_RULES) -> str | None:
    """Return the reason code why the answer must come from one engine; None: it may be split."""
    for reason, applies in UNSPLITTABLE:
        if reason not in rules.allow and applies(features):
            return reason
    if not rules.enabled:
        return "splitting_off"
    for reason, applies in REFUSABLE:
        if reason in rules.refuse and applies(features):
            return reason
    return None
