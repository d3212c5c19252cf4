"""Instances, their quarantine and what policies see of them."""

from dataclasses import replace

import pytest

from backends.errors import (
    BackendError,
    EngineBroken,
    EngineFailed,
    EngineRejected,
    EngineTimeout,
    EngineUnavailable,
    IdsMissing,
)
from backends.types import Capabilities, EngineLoad, LegRequest
from gateway.fleet.blame import MOST_PROOFS, MOST_REQUESTS, Culprit
from gateway.fleet.pools import MOST_BUSY_S, QUARANTINE_FIRST_S, QUARANTINE_MOST_S, Instance, Pools
from policies.types import Role
from tests.gateway.fleet.seams import MODEL, Clock, ScriptedEngine, build_instance


@pytest.fixture
def clock() -> Clock:
    """Time under control."""
    return Clock()


@pytest.fixture
def instance() -> Instance:
    """An instance that answers."""
    instance = build_instance(ScriptedEngine())
    instance.reachable = True
    return instance


@pytest.fixture
def pools(instance: Instance, clock: Clock) -> Pools:
    """A pool of that instance, another P and an MD."""
    peer, other = build_instance(ScriptedEngine("p2")), build_instance(ScriptedEngine("md1"), Role.MD)
    peer.reachable = True
    return Pools([instance, other, peer], clock)


@pytest.mark.parametrize("error", [EngineUnavailable("x"), EngineFailed("x"), EngineBroken("x"), EngineTimeout("x")])
def test_failures_in_a_row_quarantine(pools: Pools, instance: Instance, clock: Clock, error: BackendError) -> None:
    """One failure is forgiven; the second in a row takes the instance out for the first wait, and it returns after."""
    pools.report_failure(instance, error)
    assert instance.usable(clock())
    pools.report_failure(instance, error)
    assert not instance.usable(clock())
    assert not instance.view(clock()).healthy
    clock.now_s += QUARANTINE_FIRST_S
    assert instance.usable(clock())
    assert instance.view(clock()).healthy


def test_quarantine_grows_and_always_ends(pools: Pools, instance: Instance, clock: Clock) -> None:
    """OPS-08: the wait doubles with each failure up to a bound; after it the instance is tried again, ever again."""
    waits_s = []
    for _ in range(40):
        pools.report_failure(instance, EngineFailed("x"))
        if not instance.usable(clock()):
            waits_s.append(instance.quarantined_until_s - clock())
            clock.now_s = instance.quarantined_until_s
            assert instance.usable(clock())
    assert waits_s[:3] == [QUARANTINE_FIRST_S, 2 * QUARANTINE_FIRST_S, 4 * QUARANTINE_FIRST_S]
    assert len(waits_s) == 39
    assert max(waits_s) == QUARANTINE_MOST_S


def test_success_ends_the_quarantine(pools: Pools, instance: Instance, clock: Clock) -> None:
    """A first token ends the quarantine, and the next failure is forgiven again."""
    for _ in range(5):
        pools.report_failure(instance, EngineFailed("x"))
    pools.report_success(instance)
    assert instance.usable(clock())
    pools.report_failure(instance, EngineFailed("x"))
    assert instance.usable(clock())


def fail(pools: Pools, id_: str, request: str, tenant: str) -> None:
    """A leg of a tenant's request fails on an instance."""
    pools.report_failure(pools[id_], EngineFailed("x"), Culprit(request, tenant))


def worked(pools: Pools, id_: str, request: str) -> None:
    """A leg of a request works on an instance."""
    pools.report_success(pools[id_])
    pools.report_worked(pools[id_], Culprit(request, "any"))


def test_a_request_that_fails_on_two_instances_is_held_against_neither(pools: Pools, clock: Clock) -> None:
    """Whatever one tenant's requests do everywhere, no instance is taken out for it."""
    for number in range(50):
        for id_ in ("p1", "p2", "p1"):
            fail(pools, id_, f"r{number}", "bad")
            assert pools[id_].usable(clock())
    assert [pools["p1"].failures, pools["p2"].failures] == [0, 0]


def test_a_request_that_works_elsewhere_is_proof(pools: Pools, clock: Clock) -> None:
    """Two of one tenant's requests that failed on an instance and worked on another take it out."""
    for request in ("r1", "r2"):
        assert pools["p1"].usable(clock())
        fail(pools, "p1", request, "good")
        worked(pools, "p2", request)
    assert not pools["p1"].usable(clock()) and pools["p2"].usable(clock())


def test_a_quarantine_ends_when_its_request_turns_out_to_be_at_fault(pools: Pools, clock: Clock) -> None:
    """What two tenants' requests did to an instance is forgiven once one of them fails elsewhere, too."""
    fail(pools, "p1", "r1", "a")
    fail(pools, "p1", "r2", "b")
    assert not pools["p1"].usable(clock())
    fail(pools, "p2", "r1", "a")
    assert pools["p1"].usable(clock()) and pools["p2"].usable(clock())
    worked(pools, "p2", "r1")
    assert pools["p1"].failures == 1


def test_one_tenant_s_doubts_are_one(pools: Pools, clock: Clock) -> None:
    """Requests of one tenant that nobody else could answer weigh as one; another tenant's adds to them."""
    for number in range(20):
        fail(pools, "p1", f"r{number}", "bad")
    assert pools["p1"].failures == 1 and pools["p1"].usable(clock())
    fail(pools, "p1", "other", "good")
    assert not pools["p1"].usable(clock())


def test_the_last_that_answers_its_probe_is_never_taken_out(pools: Pools, clock: Clock) -> None:
    """Half of a role at most is out at a time: of two one, of one none; those that answer no probe do not count."""
    for id_ in ("p1", "p2", "md1"):
        pools[id_].reachable = True
        for _ in range(9):
            pools.report_failure(pools[id_], EngineFailed("x"))
    assert [pools[id_].usable(clock()) for id_ in ("p1", "p2", "md1")] == [False, True, True]
    pools["p1"].forgive()
    pools["p1"].reachable = False
    pools.report_failure(pools["p2"], EngineFailed("x"))
    assert pools["p2"].usable(clock())


def test_requests_that_failed_are_forgotten_in_time(pools: Pools) -> None:
    """What is remembered of failed requests is bounded."""
    for number in range(2 * MOST_REQUESTS):
        fail(pools, "p1", f"r{number}", f"t{number}")
    assert len(pools._blame._cases) == MOST_REQUESTS
    assert len(pools["p1"].charges.doubtful) == MOST_PROOFS


def test_refusals_never_count(pools: Pools, instance: Instance, clock: Clock) -> None:
    """POL-06, POL-02: refused requests, and engines that say when to come back, never take an instance out."""
    for status in (400, 404, 413, 422) * 5:
        pools.report_failure(instance, EngineRejected(status, "no"))
        pools.report_failure(instance, EngineUnavailable("busy", retry_after_s=1.0))
    assert instance.failures == 0
    assert instance.alive(clock())


@pytest.mark.parametrize(("said_s", "spared_s"), [(5.0, 5.0), (0.0, 0.0), (3600.0, MOST_BUSY_S)])
def test_a_busy_instance_gets_new_requests_when_it_wants_some(
    pools: Pools, instance: Instance, clock: Clock, said_s: float, spared_s: float
) -> None:
    """An engine's own Retry-After keeps new requests away for as long, while another one can take them."""
    pools.report_failure(instance, EngineUnavailable("busy", retry_after_s=said_s))
    assert instance.alive(clock()) and instance.usable(clock()) is (spared_s == 0)
    assert instance.view(clock()).draining is (spared_s > 0)
    pools.report_failure(pools["p2"], EngineUnavailable("busy", retry_after_s=said_s))
    assert pools["p2"].usable(clock())
    clock.now_s += spared_s
    assert instance.usable(clock()) and not instance.view(clock()).draining


def test_refusals_do_not_forgive(pools: Pools, instance: Instance, clock: Clock) -> None:
    """A refusal between two failures does not make them two single ones."""
    pools.report_failure(instance, EngineFailed("x"))
    pools.report_failure(instance, EngineRejected(400, "no"))
    pools.report_failure(instance, EngineFailed("x"))
    assert not instance.usable(clock())


def test_lost_ids_are_remembered(pools: Pools, instance: Instance) -> None:
    """SPL-07: policies see that an engine loses ids from its first such leg on, until it is probed again."""
    assert instance.view(0.0).streams_ids
    pools.report_failure(instance, IdsMissing("x"))
    instance.capabilities = Capabilities((MODEL,), 4096, 32, streams_token_ids=True)
    assert instance.view(0.0).streams_ids
    pools.report_failure(instance, IdsMissing("x"))
    pools.report_success(instance)
    assert not instance.view(0.0).streams_ids


@pytest.mark.parametrize(("reachable", "draining"), [(False, False), (True, True)])
def test_not_usable(instance: Instance, reachable: bool, draining: bool) -> None:
    """An instance that does not answer or is draining takes no new legs."""
    instance.reachable, instance.draining = reachable, draining
    assert not instance.usable(0.0)
    assert instance.view(0.0).draining is draining


def test_legs_are_counted(instance: Instance) -> None:
    """Running legs count while they run, also when one ends by an error; the greater of own and told load is shown."""
    with instance.occupied(), instance.occupied():
        assert instance.view(0.0).running == 2
        instance.load = EngineLoad(1, 3, 0.5)
        assert (instance.view(0.0).running, instance.view(0.0).waiting, instance.view(0.0).kv_usage) == (2, 3, 0.5)
        instance.load = EngineLoad(7, 0, 0.5)
        assert instance.view(0.0).running == 7
    with pytest.raises(EngineFailed), instance.occupied():
        raise EngineFailed("x")
    assert instance.in_flight == 0


def test_ranks_are_as_busy_as_told_or_as_used(instance: Instance) -> None:
    """A rank has its share of the instance's places; the greater of own legs and told requests counts."""
    instance.capabilities = Capabilities((MODEL,), 4096, 32, streams_token_ids=True, data_parallel_size=2)
    places = instance.spec.max_running / 2
    assert instance.rank_loads() == [0.0, 0.0]
    with instance.occupied(1), instance.occupied(1), instance.occupied():
        assert instance.rank_loads() == [0.0, 2 / places]
        assert instance.in_flight == 3
        instance.load = EngineLoad(5, 0, 0.5, rank_requests=(4, 1))
        assert instance.rank_loads() == [4 / places, 2 / places]
        instance.load = EngineLoad(5, 0, 0.5, rank_requests=(4, 1, 7))
        assert instance.rank_loads() == [0.0, 2 / places]
    instance.load = None
    assert instance.rank_loads() == [0.0, 0.0]


def test_settings_win_over_what_an_engine_tells_of_ranks(instance: Instance) -> None:
    """One that nobody asked yet has one rank; then as many as it tells, or as the settings say."""
    assert instance.data_parallel_size == 1
    instance.capabilities = Capabilities((MODEL,), 4096, 32, streams_token_ids=True, data_parallel_size=4)
    assert instance.data_parallel_size == 4
    instance.spec = replace(instance.spec, data_parallel_size=1)
    assert instance.data_parallel_size == 1


def test_views_follow_every_change(instance: Instance) -> None:
    """What policies see changes with the instance: capabilities, drain, legs, load, speed."""
    seen = [instance.view(0.0)]
    instance.capabilities = Capabilities((MODEL,), 4096, 32, streams_token_ids=True)
    seen.append(instance.view(0.0))
    instance.load = EngineLoad(1, 0, 0.0)
    seen.append(instance.view(0.0))
    instance.draining = True
    seen.append(instance.view(0.0))
    instance.note_decode(11, 0.1)
    seen.append(instance.view(0.0))
    assert len({repr(view) for view in seen}) == len(seen)
    assert (seen[-1].max_model_len, seen[-1].itl_s) == (4096, 0.01)


def test_extend_speed_is_learnt(instance: Instance) -> None:
    """The extend speed is the first one measured, then moves a fifth of the way; empty measurements say nothing."""
    instance.note_extend(0, 1.0)
    instance.note_extend(10, 0.0)
    instance.note_decode(1, 1.0)
    seen = [instance.itl_s, instance.extend_tokens_per_s]
    for took_s in (0.1, 0.05):
        instance.note_extend(100, took_s)
        seen.append(instance.extend_tokens_per_s)
    assert seen == [None, None, 1000.0, 1200.0]


def test_pools_select(pools: Pools, instance: Instance) -> None:
    """Views are those of a model's instances."""
    assert pools["p1"] is instance
    assert [view.id for view in pools.views(MODEL)] == ["p1", "md1", "p2"]
    assert pools.views("other") == ()


def test_priority_goes_only_to_engines_that_know_it(instance: Instance) -> None:
    """An engine that does not schedule by priority would refuse a request that has one, so it gets none."""
    leg = LegRequest("r", MODEL, [1], 1, priority=2)
    assert instance.fit(leg).priority is None
    knowing = Instance(replace(instance.spec, takes_priority=True), instance.engine)
    assert knowing.fit(leg).priority == 2
