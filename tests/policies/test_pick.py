"""Picking: filters, known and unknown reach, ties."""

import random
from collections import Counter

import pytest

from policies.placement import Candidates, place, reaches, sift
from policies.placement_rules import MainWeights, PlacementRules
from policies.types import Hit, InstanceView, Role
from tests.policies.build import FixedRng, facts, instance

MAINS = [instance(f"m{index}", Role.MD) for index in range(4)]


def pool(views: list[InstanceView], reach: tuple[int, ...]) -> Candidates:
    """Idle candidates with a known reach for a prompt of 1,000 tokens."""
    return Candidates(views, [view.load for view in views], 1000, reach)


def test_sift_writes_the_reasons() -> None:
    """Instances that a filter rejects are left out, with their reasons."""
    rejected: dict[str, str] = {}
    kept = sift(MAINS, lambda view: None if view.id == "m2" else "no", rejected)
    assert kept == [MAINS[2]]
    assert rejected == {"m0": "no", "m1": "no", "m3": "no"}


def test_reach_is_the_longer_of_engine_and_store_within_the_prompt() -> None:
    """Reach is the longer known prefix, capped at the prompt."""
    request = facts(1000, {"m0": Hit(100, 400), "m1": Hit(400, 100), "m2": Hit(5000), "m3": Hit(0)})
    assert reaches(MAINS, request) == [400, 400, 1000, 0]


@pytest.mark.parametrize(("hits", "expected"), [({"m0": Hit(600), "m1": Hit(200)}, 400), ({"m0": None}, 0)])
def test_unknown_reach_is_the_mean_of_the_known(hits: dict[str, Hit | None], expected: int) -> None:
    """An instance whose hit is unknown neither wins nor loses by it."""
    assert reaches(MAINS, facts(1000, hits))[2:] == [expected, expected]


def test_the_best_total_wins_and_all_is_told() -> None:
    """The candidate with the best weighted mean is chosen; totals, signals and rejections are kept."""
    weights = MainWeights(prefix=1.0, queue=1.0, kv=0.0, session=0.0, wan=0.0)
    chosen, placement = place(
        Role.MD, pool(MAINS, (0, 0, 900, 0)), weights, PlacementRules(), {"m9": "draining"}, FixedRng()
    )
    assert chosen.id == placement.chosen == "m2"
    assert placement.ids == ["m0", "m1", "m2", "m3"]
    assert placement.totals == pytest.approx([0.5, 0.5, 0.95, 0.5])
    assert placement.signals == {"prefix": [0.0, 0.0, 0.9, 0.0], "queue": [1.0, 1.0, 1.0, 1.0]}
    assert placement.rejected == {"m9": "draining"}


def test_ties_are_spread() -> None:
    """Equal candidates are drawn evenly; one outside the margin never."""
    rng = random.Random(1)
    views = [*MAINS[:3], instance("m3", Role.MD, kv_usage=0.9)]
    drawn = Counter(
        place(Role.MD, pool(views, (0, 0, 0, 0)), MainWeights(), PlacementRules(), {}, rng)[0].id for _ in range(3000)
    )
    assert set(drawn) == {"m0", "m1", "m2"}
    assert min(drawn.values()) > 850


def test_without_a_margin_only_the_best_is_drawn() -> None:
    """With a margin of 0 a slightly better candidate always wins."""
    views = [MAINS[0], instance("m1", Role.MD, kv_usage=0.001)]
    for value in (0.0, 0.5, 0.999):
        rules = PlacementRules(tie_margin=0.0)
        assert place(Role.MD, pool(views, (0, 0)), MainWeights(), rules, {}, FixedRng(value))[0].id == "m0"


def test_a_hot_prefix_does_not_pile_up() -> None:
    """When every request has its prefix on one instance, the others get some as it fills."""
    running = Counter[str]()
    hot = (1000, 0, 0, 0)
    for _ in range(400):
        views = [instance(view.id, Role.MD, running=running[view.id], max_running=100) for view in MAINS]
        chosen, _ = place(Role.MD, pool(views, hot), MainWeights(), PlacementRules(), {}, random.Random(3))
        running[chosen.id] += 1
    assert running["m0"] == max(running.values())
    assert min(running.values()) >= 50
