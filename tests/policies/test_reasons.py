"""Every reason that can be given has a meaning, and none is explained that cannot be given."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings

from policies.eligibility import REFUSABLE, UNSPLITTABLE, RequestFeatures, unsplittable_reason
from policies.explain import REASONS
from policies.plans import Relay
from policies.route import choose_overflow, choose_plan
from policies.rules import Rules
from policies.singular import relay_finished_first
from policies.types import Alignment, Facts, Hit, NoInstance, Role, SingularUse, Snapshot
from tests.policies.build import M1, P1, R1, cases, decide, facts, instance, link, rules, snapshot

SPLIT = RequestFeatures(temperature=0.0)
COLD = facts(50_000, max_output_tokens=100)
SPARE = SingularUse(used=0.0, total=1000.0)
BEHIND = Alignment(1000.0, 900.0, 100.0)


def ask(request: Facts | None = None, seen: Snapshot | None = None, **given_rules: Any) -> str:
    """The reason of the plan that is chosen."""
    return decide(request or facts(), seen, rules(**given_rules)).plan.reason


def ask_with(refused: tuple[str, ...] = (), enabled: bool = True, **features: Any) -> str:
    """The reason of the plan of a request with such features."""
    given_rules = rules(splitting={"refuse": refused, "enabled": enabled})
    reason = unsplittable_reason(replace(SPLIT, **features), given_rules.splitting)
    return decide(facts(unsplittable=reason), given=given_rules).plan.reason


def ask_outside(when: str, load: int = 0, refused: bool = False) -> str | None:
    """The reason to ask an external provider."""
    views = [instance("m", Role.MD, running=load, max_running=8)]
    return choose_overflow(views, rules(overflow={"model": "x", "when": when}), refused=refused)


def end_early() -> str:
    """What is said of an answer that RLD ended before its KV had crossed."""
    plan = Relay("p1", "r1", "m1", "wan_slow", ("a", "b"))
    return relay_finished_first(plan, COLD, 100, snapshot(singular=SPARE), Rules()).reason


GIVEN: dict[str, Callable[[], str | None]] = {
    "under_one_chunk": lambda: ask(facts(100)),
    "nothing_to_move": lambda: ask(facts(hits={"m1": Hit(20_000)})),
    "short_transfer": lambda: ask(facts(800)),
    "hit_within_bound": lambda: ask(facts(hits={"m1": Hit(19_456)})),
    "hit_unknown": lambda: ask(facts(hits={})),
    "same_region": lambda: ask(seen=snapshot(P1, R1, replace(M1, region="a"), links=())),
    "region_pinned": lambda: ask(regions=["a"]),
    "relay_not_allowed": lambda: ask(pipelines=["direct"]),
    "no_relay": lambda: ask(seen=snapshot(P1, M1)),
    "relay_overloaded": lambda: ask(seen=snapshot(P1, replace(R1, running=256), M1)),
    "ids_missing": lambda: ask(seen=snapshot(P1, R1, replace(M1, streams_ids=False))),
    "wan_slow": ask,
    "relay_only": lambda: ask(pipelines=["relay"]),
    "fused": lambda: ask(relay={"fused": "auto"}),
    "singular_misaligned": lambda: ask(COLD, snapshot(singular=SPARE, alignment=BEHIND)),
    "singular_budget_spent": lambda: ask(COLD, snapshot(singular=SingularUse(4.0, 10.0))),
    "main_down": lambda: ask(seen=snapshot(P1, R1, replace(M1, healthy=False))),
    "link_down": lambda: ask(seen=snapshot(links=(link(up=False),))),
    "singular": lambda: ask(COLD, snapshot(singular=SPARE, links=(link(rate_bytes_per_s=1e6),))),
    "singular_live": end_early,
    "prefix_cache_ineffective": lambda: ask(seen=snapshot(prefix_cache_effective=False)),
    "no_prefill": lambda: ask(seen=snapshot(R1, M1)),
    "first_canary": lambda: ask(seen=snapshot(P1, R1, replace(M1, fingerprint="?m1", judged=False))),
    "kv_unread": lambda: ask(seen=snapshot(links=(link(up=False, trusted=False),))),
    "no_link": lambda: ask(seen=snapshot(links=())),
    "structured_output": lambda: ask_with(structured_output=True),
    "penalty_state": lambda: ask_with(presence_penalty=0.5),
    "bad_words": lambda: ask_with(multi_token_bad_words=True),
    "seeded_sampling": lambda: ask_with(seeded=True, temperature=1.0),
    "thinking_budget": lambda: ask_with(thinking_budget=True),
    "unknown_field": lambda: ask_with(unknown_field=True),
    "single_token": lambda: ask_with(max_tokens=1),
    "splitting_off": lambda: ask_with(enabled=False),
    "sampled": lambda: ask_with(("sampled",), temperature=1.0),
    "tools": lambda: ask_with(("tools",), tools=True),
    "logprobs": lambda: ask_with(("logprobs",), logprobs=True),
    "always": lambda: ask_outside("always"),
    "no_instance": lambda: ask_outside("no_instance", refused=True),
    "overloaded": lambda: ask_outside("overloaded", load=8),
}
"""A way to each reason."""


@pytest.mark.parametrize("reason", REASONS)
def test_every_reason_can_be_given(reason: str) -> None:
    """Whatever is explained happens to some request."""
    assert GIVEN[reason]() == reason


def test_requests_that_are_not_split_have_a_meaning() -> None:
    """Each reason for which an answer is one engine's is told."""
    assert {reason for reason, _ in UNSPLITTABLE + REFUSABLE} <= REASONS.keys()


@settings(max_examples=300)
@given(case=cases())
def test_every_plan_has_an_explained_reason(case: tuple[Facts, Snapshot, Rules, random.Random]) -> None:
    """Whatever the state, a plan's reason is one that is explained."""
    try:
        decision = choose_plan(*case)
    except NoInstance:
        return
    assert decision.plan.reason in REASONS
