"""Explanations: everything that led to a plan, as JSON values."""

import json
import random

from hypothesis import given, settings

from policies.explain import REASONS, explain_decision, explain_plan
from policies.plans import Direct
from policies.route import choose_plan
from policies.rules import Rules
from policies.types import Facts, Hit, NoInstance, Snapshot
from tests.policies.build import cases, decide, facts


def test_a_relay_is_explained() -> None:
    """Facts, estimate, plan, reason and each role's candidates with their signals are there."""
    told = explain_decision(decide(facts(20_000, {"p1": Hit(0), "m1": Hit(512), "r1": None})))
    assert told["facts"]["hits"]["m1"] == {"tokens": 512, "store_tokens": 0, "predicted": False}
    assert told["facts"]["hits"]["r1"] is None
    assert told["estimate"]["missing_tokens"] == 19_456
    assert told["plan"] == {
        "kind": "relay",
        "prefill": "p1",
        "relay": "r1",
        "main": "m1",
        "link": ["a", "b"],
        "classic": False,
        "fused": False,
        "lends": False,
    }
    assert told["reason"] == "wan_slow"
    assert told["why"] == REASONS["wan_slow"]
    assert [score["role"] for score in told["scores"]] == ["MD", "P", "RLD"]
    (candidate,) = told["scores"][0]["candidates"]
    assert candidate["id"] == told["scores"][0]["chosen"] == "m1"
    assert 0 < candidate["signals"]["prefix"] < candidate["total"] < 1


def test_classic_is_told() -> None:
    """A classic Direct can be told from one that shows P's token."""
    assert explain_plan(Direct("p", "m", "seeded_sampling", classic=True))["classic"] is True
    assert explain_plan(Direct("p", "m", "short_transfer"))["classic"] is False


@settings(max_examples=50)
@given(case=cases())
def test_every_decision_is_json(case: tuple[Facts, Snapshot, Rules, random.Random]) -> None:
    """Any decision can be written as JSON."""
    try:
        decision = choose_plan(*case)
    except NoInstance:
        return
    told = explain_decision(decision)
    assert json.loads(json.dumps(told, allow_nan=False))["reason"] == decision.plan.reason
