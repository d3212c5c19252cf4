"""Placement: filters, known and unknown reach, signals, ties."""

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.placement import SIGNALS, Candidates, choose_rank, place, reaches, sift
from policies.placement_rules import MainWeights, PlacementRules, PrefillWeights, RelayWeights
from policies.types import Hit, InstanceView, Role
from policies.valley import PrefillCurve
from tests.policies.build import FixedRng, facts, instance

MAINS = [instance(f"m{index}", Role.MD) for index in range(4)]


def pool(views: list[InstanceView], reach: tuple[int, ...]) -> Candidates:
    """Idle candidates with a known reach for a prompt of 1,000 tokens."""
    return Candidates(views, [view.load for view in views], 1000, reach)


@pytest.mark.parametrize("role", list(Role))
def test_rank_that_has_the_prompt_is_chosen(role: Role) -> None:
    """Of ranks that are equally busy the one with the longest prefix is chosen, whatever the role."""
    assert choose_rank(role, [0, 900, 100], [0.0, 0.0, 0.0], 1000, PlacementRules(), FixedRng()) == 1


def test_hot_prefix_spreads_over_ranks() -> None:
    """A short common prefix does not draw all to one rank, and a long one only until its rank is far busier."""
    rules, rng = PlacementRules(), FixedRng()
    assert choose_rank(Role.MD, [50, 0], [0.5, 0.0], 1000, rules, rng) == 1
    assert choose_rank(Role.MD, [900, 0], [0.5, 0.0], 1000, rules, rng) == 0
    assert choose_rank(Role.MD, [900, 0], [3.0, 0.0], 1000, rules, rng) == 1


def test_equal_ranks_are_drawn() -> None:
    """Where nothing tells ranks apart each is drawn."""
    drawn = {choose_rank(Role.P, [0, 0], [0.0, 0.0], 0, PlacementRules(), FixedRng(value)) for value in (0.1, 0.9)}
    assert drawn == {0, 1}


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


def candidates(*views: InstanceView, reach: tuple[int, ...] = (), wan_s: tuple[float, ...] = ()) -> Candidates:
    """Candidates for a prompt of 1,000 tokens."""
    return Candidates(
        views, [view.load for view in views], 1000, reach or (0,) * len(views), wan_s, frozenset({"served"})
    )


IDLE = instance("idle", Role.P, max_running=10)
HALF = instance("half", Role.P, running=4, waiting=1, max_running=10)
FULL = instance("full", Role.P, running=10, max_running=10)


def test_prefix_fades_where_load_is_above_the_least() -> None:
    """A cached prefix counts in full on the least busy one, and less above its load."""
    scores = SIGNALS["prefix"](candidates(IDLE, HALF, FULL, reach=(500, 1000, 1000)))
    assert scores == pytest.approx([0.5, 0.5, 0.0])


@pytest.mark.parametrize("holders", [1, 4, 16])
@pytest.mark.parametrize("role", [Role.P, Role.MD])
def test_a_cold_idle_instance_takes_its_share(role: Role, holders: int) -> None:
    """Beside holders of a hot prefix, however many, a new instance fills with them: none runs above its batch."""
    loads, places, rng = [0] * (holders + 1), 20, random.Random(1)
    weights = PrefillWeights() if role is Role.P else MainWeights()
    for _ in range(places * (holders + 1)):
        views = [
            instance(f"{'cold' if at == holders else at}", role, running=load, max_running=places)
            for at, load in enumerate(loads)
        ]
        reach = (*(900 for _ in range(holders)), 0)
        chosen, _ = place(role, pool(views, reach), weights, PlacementRules(), {}, rng)
        loads[views.index(chosen)] += 1
    assert loads[-1] >= places // 2 and max(loads) <= places * 3 // 2


def test_prefix_counts_nothing_one_batch_above_the_mean() -> None:
    """An instance that is one batch busier than the mean draws nobody by its cache."""
    swamped = replace(FULL, waiting=30)
    assert SIGNALS["prefix"](candidates(IDLE, swamped, reach=(0, 1000))) == [0.0, 0.0]


def test_queue_falls_with_load() -> None:
    """An idle instance scores 1, a full one a half, a queueing one less."""
    assert SIGNALS["queue"](candidates(IDLE, FULL, replace(FULL, waiting=20))) == pytest.approx([1.0, 0.5, 0.25])


def test_kv_is_the_free_share() -> None:
    """Free KV memory is the score, never below 0."""
    views = [replace(IDLE, kv_usage=usage) for usage in (0.0, 0.75, 1.0, 1.2)]
    assert SIGNALS["kv"](candidates(*views)) == [1.0, 0.25, 0.0, 0.0]


def test_session_marks_the_instance_that_served_it() -> None:
    """Only instances of the conversation's last turns score."""
    assert SIGNALS["session"](candidates(IDLE, replace(IDLE, id="served"))) == [0.0, 1.0]


def test_wan_prefers_the_soonest() -> None:
    """The soonest transfer scores 1; without any, all score alike."""
    assert SIGNALS["wan"](candidates(IDLE, HALF, wan_s=(0.05, 0.95))) == pytest.approx([1.0, 0.1])
    assert SIGNALS["wan"](candidates(IDLE, HALF)) == [1.0, 1.0]


def test_prefill_prefers_a_fuller_chunk_over_a_costly_tail() -> None:
    """An instance with a longer hit scores less when its small tail costs more time."""
    curve = PrefillCurve((0, 100, 200, 1000), (0.1, 0.5, 0.2, 1.0))
    views = [replace(IDLE, curve=curve), replace(HALF, curve=curve)]
    longer_hit, shorter_hit = SIGNALS["prefill"](candidates(*views, reach=(900, 800)))
    assert longer_hit < shorter_hit == 1.0


def test_unmeasured_prefill_takes_the_mean() -> None:
    """Without a curve an instance is taken for an average one; without any curve all score alike."""
    curve = PrefillCurve((0, 1000), (0.2, 1.2))
    measured, unmeasured = SIGNALS["prefill"](candidates(replace(IDLE, curve=curve), IDLE))
    assert measured == unmeasured == 1.0
    assert SIGNALS["prefill"](candidates(IDLE, HALF)) == [1.0, 1.0]


def test_every_weight_has_its_signal() -> None:
    """The rules can weigh exactly the signals that exist."""
    names = {name for weights in (PrefillWeights, RelayWeights, MainWeights) for name in weights.__struct_fields__}
    assert names == set(SIGNALS)


@given(
    views=st.lists(
        st.builds(
            InstanceView,
            id=st.text(max_size=3),
            role=st.just(Role.P),
            model=st.just("m"),
            region=st.just("a"),
            running=st.integers(0, 10**6),
            waiting=st.integers(0, 10**6),
            kv_usage=st.floats(0, 2),
            max_running=st.integers(1, 10**4),
            curve=st.sampled_from([None, PrefillCurve((0, 10), (1.0, 0.5)), PrefillCurve((0, 500), (0.01, 90.0))]),
        ),
        min_size=1,
        max_size=8,
    ),
    data=st.data(),
)
def test_signals_stay_in_range(views: list[InstanceView], data: st.DataObject) -> None:
    """Every signal gives one number in [0, 1] per candidate."""
    size = len(views)
    reach = tuple(data.draw(st.lists(st.integers(0, 1000), min_size=size, max_size=size)))
    wan_s = tuple(data.draw(st.lists(st.floats(0, 1e6), min_size=size, max_size=size)))
    for signal in SIGNALS.values():
        scores = signal(candidates(*views, reach=reach, wan_s=wan_s))
        assert len(scores) == size
        assert all(0.0 <= score <= 1.0 for score in scores)
