"""A decision as plain JSON values, for traces and for ``pdd explain``."""

from typing import Any

from msgspec import to_builtins

from policies.reasons import REASONS
from policies.types import Decision, Direct, Plan


def explain_plan(plan: Plan) -> dict[str, Any]:
    """Say which instances a plan uses: ``kind``, ``prefill``, ``relay``, ``main``, ``link`` and ``classic``."""
    return {
        "kind": plan.kind,
        "prefill": plan.prefill,
        "relay": plan.relay,
        "main": plan.main,
        "link": None if plan.link is None else list(plan.link),
        "classic": isinstance(plan, Direct) and plan.classic,
    }


def explain_decision(decision: Decision) -> dict[str, Any]:
    """Say what was known, estimated and chosen: ``facts``, ``estimate``, ``plan``, ``reason``, ``why`` and ``scores``.

    A hit of None is unknown. ``scores`` holds one entry per role that was filled, in the order of the choice.
    """
    return {
        "facts": to_builtins(decision.facts),
        "estimate": to_builtins(decision.estimate),
        "plan": explain_plan(decision.plan),
        "reason": decision.plan.reason,
        "why": REASONS[decision.plan.reason],
        "scores": [
            {
                "role": placement.role.value,
                "chosen": placement.chosen,
                "candidates": [
                    {
                        "id": name,
                        "total": placement.totals[index],
                        "signals": {signal: values[index] for signal, values in placement.signals.items()},
                    }
                    for index, name in enumerate(placement.ids)
                ],
                "rejected": dict(placement.rejected),
            }
            for placement in decision.scores
        ],
    }
