"""A decision as plain JSON values, and what each reason code means."""

from collections.abc import Mapping
from typing import Any

from msgspec import to_builtins

from policies.plans import Decision, Plan


def explain_plan(plan: Plan) -> dict[str, Any]:
    """Say which instances a plan uses, and how: its fields, but for the reason."""
    return {
        "kind": plan.kind,
        "prefill": plan.prefill,
        "relay": plan.relay,
        "main": plan.main,
        "link": None if plan.link is None else list(plan.link),
        "classic": plan.classic,
        "fused": plan.fused,
        "lends": plan.lends,
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


REASONS: Mapping[str, str] = {
    # direct: no relay is needed, wanted or to be had
    "under_one_chunk": "The prompt has no full KV chunk that could cross.",
    "nothing_to_move": "MD's side has all KV of the prompt that could cross.",
    "short_transfer": "Even the whole prompt's KV crosses within `direct_wan_bound_s`.",
    "hit_within_bound": "The KV that MD lacks is there within `direct_wan_bound_s` of P's end.",
    "hit_unknown": "Nobody knows what MD has cached, so how long it would take is unknown, too.",
    "same_region": "P and MD stand in one region: no KV crosses.",
    "region_pinned": "The tenant's regions have no MD: an RLD takes its place.",
    "relay_not_allowed": "The rules allow no relay: `relay` is not among `pipelines`.",
    "no_relay": "No RLD beside P can take the request.",
    "relay_overloaded": "No RLD beside P has room (`relay.load_max`, `placement.kv_usage_max`).",
    "ids_missing": "P or MD does not stream the ids of its tokens, so nothing can be handed over.",
    # relay
    "wan_slow": "The KV that MD lacks takes longer than `direct_wan_bound_s`.",
    "relay_only": "The rules allow nothing but a relay: `direct` is not among `pipelines`.",
    "fused": "A relay in which P itself writes on in RLD's place, as `relay.fused` lets it.",
    "singular_misaligned": "It would be singular, but MD's caches have fallen behind P's (`alignment`).",
    "singular_budget_spent": "It would be singular, but `singular.budget` is used up.",
    "main_down": "No MD is up: RLD writes until one is.",
    "link_down": "No link to an MD is up: RLD writes until one is.",
    # singular
    "singular": "Short, uncached and rare: RLD would be done before the KV had crossed.",
    "singular_live": "RLD ended a relayed answer first, and the rest of its KV was not worth moving.",
    # passthrough
    "prefix_cache_ineffective": "The model's engines reuse no prefix, so no KV can be handed over.",
    "no_prefill": "No P is up: MD computes the prompt.",
    "no_link": "No P that is up has a link to an MD: MD computes the prompt.",
    "first_canary": "A P or an MD is new, and its first canary is not back: MD answers alone until then.",
    "kv_unread": "MD's side does not use the KV that crosses (`pdd_link_trusted`): MD computes the prompt.",
    # one engine makes the whole answer
    "structured_output": "A grammar's position would be lost at the joint.",
    "penalty_state": "Counts for presence or frequency penalties would be lost at the joint.",
    "bad_words": "Forbidden words of several tokens could pass at the joint.",
    "seeded_sampling": "The random generator's state would be lost at the joint.",
    "thinking_budget": "The count of reasoning tokens would be lost at the joint.",
    "unknown_field": "A field is not known, and engines may keep a state for it.",
    "single_token": "P's token is the whole answer.",
    "splitting_off": "`splitting.enabled` is false.",
    "sampled": "`splitting.refuse` names answers with a temperature.",
    "tools": "`splitting.refuse` names requests with tools.",
    "logprobs": "`splitting.refuse` names answers with log-probabilities.",
    # external
    "always": "`overflow.when` sends all of the tenant's requests outside.",
    "no_instance": "No engine can take the request.",
    "overloaded": "Every MD has at least `overflow.load_max`.",
}
