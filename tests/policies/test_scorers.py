"""Signals: each in [0, 1], each reading one thing."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.placement import SIGNALS, Candidates
from policies.placement_rules import MainWeights, PrefillWeights, RelayWeights
from policies.types import InstanceView, Role
from policies.valley import PrefillCurve
from tests.policies.build import instance


def candidates(*views: InstanceView, reach: tuple[int, ...] = (), wan_s: tuple[float, ...] = ()) -> Candidates:
    """Candidates for a prompt of 1,000 tokens."""
    return Candidates(
        views, [view.load for view in views], 1000, reach or (0,) * len(views), wan_s, frozenset({"served"})
    )


IDLE = instance("idle", Role.P, max_running=10)
HALF = instance("half", Role.P, running=4, waiting=1, max_running=10)
FULL = instance("full", Role.P, running=10, max_running=10)


def test_prefix_fades_where_load_is_above_the_mean() -> None:
    """A cached prefix counts in full at or below the mean load, and less above it."""
    scores = SIGNALS["prefix"](candidates(IDLE, HALF, FULL, reach=(500, 1000, 1000)))
    assert scores == pytest.approx([0.5, 1.0, 0.5])


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
