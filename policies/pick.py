"""Filling one role: filter the instances, score what is left, pick the best, ties at random."""

from collections.abc import Callable, Mapping, Sequence

from policies.placement_rules import PlacementRules, Weights
from policies.scorers import SIGNALS, Candidates
from policies.types import Facts, InstanceView, Placement, Rng, Role

Filter = Callable[[InstanceView], str | None]
"""Gives the reason why an instance cannot be chosen, or None."""


def sift(views: Sequence[InstanceView], reject: Filter, rejected: dict[str, str]) -> list[InstanceView]:
    """Return the instances that ``reject`` lets pass; write the others' reasons into ``rejected``."""
    kept = []
    for view in views:
        reason = reject(view)
        if reason is None:
            kept.append(view)
        else:
            rejected[view.id] = reason
    return kept


def reaches(views: Sequence[InstanceView], facts: Facts) -> list[int]:
    """Known prefix of each instance, capped at the prompt; unknown ones get the mean of the known (0 if none is)."""
    hits, prompt = facts.hits, facts.prompt_tokens
    found = [hits.get(view.id) for view in views]
    known = [hit.tokens if hit.tokens > hit.store_tokens else hit.store_tokens for hit in found if hit is not None]
    known = [reach if reach < prompt else prompt for reach in known]
    if len(known) == len(found):
        return known
    mean = sum(known) // len(known) if known else 0
    in_order = iter(known)
    return [mean if hit is None else next(in_order) for hit in found]


def place(
    role: Role,
    candidates: Candidates,
    weights: Weights,
    rules: PlacementRules,
    rejected: Mapping[str, str],
    rng: Rng,
) -> tuple[InstanceView, Placement]:
    """Choose one of the candidates (at least one) for ``role``."""
    shares = {name: weight for name in weights.__struct_fields__ if (weight := getattr(weights, name)) > 0}
    whole = sum(shares.values())
    signals = {name: SIGNALS[name](candidates) for name in shares}
    totals = [0.0] * len(candidates.views)
    for name, weight in shares.items():
        share = weight / whole
        totals = [total + share * value for total, value in zip(totals, signals[name], strict=True)]
    bar = max(totals) - rules.tie_margin
    tied = [index for index, total in enumerate(totals) if total >= bar]
    chosen = candidates.views[tied[int(rng.random() * len(tied))]]
    ids = [view.id for view in candidates.views]
    return chosen, Placement(role, chosen.id, ids, totals, signals, rejected)
