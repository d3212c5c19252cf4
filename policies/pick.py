"""Filling one role: filter the instances, score what is left, pick the best, ties at random."""

from collections.abc import Callable, Mapping, Sequence

from policies.rules import PlacementRules, Weights
from policies.scorers import SIGNALS, Candidates
from policies.types import Facts, InstanceView, Placement, Rng, Role, Scored

Filter = Callable[[InstanceView], str | None]
"""Gives the reason why an instance cannot be chosen, or None."""


def standing(facts: Facts) -> Filter:
    """Make the filter that holds for every role: healthy, taking new work, with room for the prompt and one token."""

    def reject(view: InstanceView) -> str | None:
        if not view.healthy:
            return "unhealthy"
        if view.draining:
            return "draining"
        if view.max_model_len is not None and facts.prompt_tokens + 1 > view.max_model_len:
            return "too_long"
        return None

    return reject


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


def prefer(views: list[InstanceView], reject: Filter, rejected: dict[str, str]) -> list[InstanceView]:
    """Like ``sift``, but where nothing would be left all stay."""
    reasons: dict[str, str] = {}
    kept = sift(views, reject, reasons)
    if not kept:
        return views
    rejected.update(reasons)
    return kept


def reaches(views: Sequence[InstanceView], facts: Facts) -> list[int]:
    """Known prefix of each instance, capped at the prompt; unknown ones get the mean of the known (0 if none is)."""
    hits = facts.hits
    found = [hits.get(view.id) for view in views]
    known = [min(hit.reach_tokens, facts.prompt_tokens) for hit in found if hit is not None]
    mean = sum(known) // len(known) if known else 0
    return [mean if hit is None else min(hit.reach_tokens, facts.prompt_tokens) for hit in found]


def place(
    role: Role,
    candidates: Candidates,
    weights: Weights,
    rules: PlacementRules,
    rejected: Mapping[str, str],
    rng: Rng,
) -> tuple[InstanceView, Placement]:
    """Choose one of the candidates (at least one) for ``role``."""
    names = [name for name in weights.__struct_fields__ if getattr(weights, name) > 0]
    shares = [getattr(weights, name) for name in names]
    whole = sum(shares)
    rows = list(zip(*(SIGNALS[name](candidates) for name in names), strict=True))
    totals = [sum(map(float.__mul__, shares, row)) / whole for row in rows]
    bar = max(totals) - rules.tie_margin
    tied = [index for index, total in enumerate(totals) if total >= bar]
    chosen = candidates.views[tied[int(rng.random() * len(tied))]]
    scored = tuple(
        Scored(view.id, total, dict(zip(names, row, strict=True)))
        for view, total, row in zip(candidates.views, totals, rows, strict=True)
    )
    return chosen, Placement(role, chosen.id, scored, rejected)
