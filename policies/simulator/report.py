"""What a simulation came to: waits, shares, WAN bytes, and good requests per cost."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from policies.rules import SloRules
from policies.simulator.flow import Outcome


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean and quantiles of some seconds; all 0 where there are none."""

    mean_s: float
    p50_s: float
    p90_s: float
    p99_s: float


@dataclass(frozen=True, slots=True)
class Report:
    """Figures of one simulation."""

    requests: int
    refused: int
    plans: Mapping[str, int]
    """Requests by ``kind:reason``."""
    ttft: Spread
    gap: Spread
    itl: Spread
    """Mean time between an answer's tokens, over answers."""
    total: Spread
    token_share: Mapping[str, float]
    """Share of the output tokens that P, RLD and MD made."""
    prefill_hit: float
    """Share of prompt tokens that P had."""
    main_hit: float
    """The same of MD."""
    singular: float
    """Share of requests that ended at RLD without their KV crossing."""
    wan_bytes: int
    duration_s: float
    good: float
    """Share of requests within the service's promises; those that were refused are not."""
    good_per_s: float
    """Such requests in a second of arrivals."""
    cost: float
    """Of the fleet, in an hour."""
    bcr: float
    """``good_per_s`` over the fleet's cost."""


def spread(seconds: Sequence[float]) -> Spread:
    """Summarise times."""
    if not seconds:
        return Spread(0.0, 0.0, 0.0, 0.0)
    ordered = sorted(seconds)
    at = [ordered[min(len(ordered) - 1, int(share * len(ordered)))] for share in (0.5, 0.9, 0.99)]
    return Spread(sum(ordered) / len(ordered), *at)


def is_good(outcome: Outcome, slo: SloRules) -> bool:
    """Tell whether a request was within the promises."""
    if outcome.ttft_s is None or outcome.end_s is None:
        return False
    return slo.judge(outcome.ttft_s, outcome.end_s - outcome.row.at_s, outcome.gap_s) is not False


def make_report(
    outcomes: Sequence[Outcome],
    refused: int,
    wan_bytes: float,
    cost: float,
    slo: SloRules,
    itl_s: float | None = None,
) -> Report:
    """Count up the outcomes of a simulation. ``itl_s``: mean time between tokens that is promised as well."""
    ends = [outcome.end_s for outcome in outcomes if outcome.end_s is not None]
    comes = [outcome.row.at_s for outcome in outcomes]
    duration_s = max(ends, default=0.0) - min(comes, default=0.0)
    span_s = max(comes, default=0.0) - min(comes, default=0.0) or duration_s
    tokens = {
        "P": sum(outcome.prefill_tokens for outcome in outcomes),
        "RLD": sum(outcome.relay_tokens for outcome in outcomes),
        "MD": sum(outcome.main_tokens for outcome in outcomes),
    }
    made = max(1, sum(tokens.values()))
    prompts = max(1, sum(outcome.row.prompt_tokens for outcome in outcomes))
    good = sum(is_good(outcome, slo) and (itl_s is None or (outcome.itl_s or 0.0) <= itl_s) for outcome in outcomes)
    good_per_s = good / span_s if span_s > 0 else 0.0
    return Report(
        requests=len(outcomes),
        refused=refused,
        plans=dict(Counter(f"{outcome.kind}:{outcome.reason}" for outcome in outcomes).most_common()),
        ttft=spread([outcome.ttft_s for outcome in outcomes if outcome.ttft_s is not None]),
        gap=spread([outcome.gap_s for outcome in outcomes]),
        itl=spread([itl_s for outcome in outcomes if (itl_s := outcome.itl_s) is not None]),
        total=spread([outcome.end_s - outcome.row.at_s for outcome in outcomes if outcome.end_s is not None]),
        token_share={role: count / made for role, count in tokens.items()},
        prefill_hit=sum(outcome.prefill_hit_tokens for outcome in outcomes) / prompts,
        main_hit=sum(outcome.main_hit_tokens for outcome in outcomes) / prompts,
        singular=sum(outcome.kind == "singular" for outcome in outcomes) / max(1, len(outcomes)),
        wan_bytes=round(wan_bytes),
        duration_s=duration_s,
        good=good / max(1, len(outcomes) + refused),
        good_per_s=good_per_s,
        cost=cost,
        bcr=good_per_s / cost if cost > 0 else 0.0,
    )
