"""Tenants' shares of the line, in a scheduler that starts chunk after chunk: counted in bytes, not in time."""

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.kv.bridge.schedule import TransferSchedule
from backends.types import TransferPriority
from tests.backends.kv.bridge.test_schedule import ALL, SIZE, deliver, make, numbered, see, take


def begin(
    schedule: TransferSchedule,
    name: str,
    count: int,
    tenant: str,
    weight: float = 1.0,
    priority: TransferPriority = "waiting",
) -> None:
    """Open a tenant's transfer of ``count`` chunks that the sending store holds."""
    schedule.open(name, numbered(f"{name}-", count), (), priority, tenant, weight)
    see(schedule, numbered(f"{name}-", count))


def given_to(schedule: TransferSchedule, count: int) -> list[str]:
    """Whose transfers the next so many chunks are of."""
    names = []
    for _ in range(count):
        fetch = take(schedule)
        names.append(fetch.transfer_id)
        deliver(schedule, fetch)
    return names


def chunks_until_done(schedule: TransferSchedule, name: str) -> int:
    """How many chunks cross until a transfer is complete."""
    count = 0
    while not schedule.standing(name).complete:
        deliver(schedule, take(schedule))
        count += 1
    return count


@pytest.mark.parametrize("others", [1, 50, 500])
def test_many_transfers_of_one_tenant_take_half_of_the_line(others: int) -> None:
    """However many large transfers one tenant has on order, another's takes at most twice as long as alone."""
    schedule = make(small_bytes=10 * SIZE)
    for number in range(others):
        begin(schedule, f"flood{number}", 40, "flood")
    given_to(schedule, 7)
    begin(schedule, "t", 40, "good")
    assert chunks_until_done(schedule, "t") <= 2 * 40 + 1


def test_small_transfers_of_one_tenant_do_not_hold_up_anothers_large_one() -> None:
    """A tenant may flood the line with small transfers: beyond its head start the others have their half."""
    schedule = make(small_bytes=10 * SIZE)
    for number in range(200):
        begin(schedule, f"flood{number}", 5, "flood")
    begin(schedule, "t", 40, "good")
    assert chunks_until_done(schedule, "t") <= 2 * 40 + 10 + 1


def test_one_small_transfer_after_the_other_is_no_way_around() -> None:
    """A tenant that opens its next small transfer when the last has ended gets its head start once."""
    schedule = make(small_bytes=10 * SIZE)
    begin(schedule, "t", 60, "good")
    count = 0
    for number in range(1000):
        name = f"flood{number}"
        begin(schedule, name, 5, "flood")
        while not schedule.standing(name).complete and not schedule.standing("t").complete:
            deliver(schedule, take(schedule))
            count += 1
        schedule.close(name)
        if schedule.standing("t").complete:
            break
    assert schedule.standing("t").complete and count <= 2 * 60 + 10 + 1


def test_a_small_transfer_passes_everybodys_large_ones() -> None:
    """A tenant's small transfer crosses at once, however many others have large ones."""
    schedule = make(small_bytes=10 * SIZE)
    for number in range(50):
        begin(schedule, f"l{number}", 40, f"tenant{number}")
    given_to(schedule, 120)
    begin(schedule, "s", 8, "another")
    assert given_to(schedule, 8) == ["s"] * 8


def test_a_tenants_own_small_transfers_still_go_before_its_large_ones() -> None:
    """Within a tenant nothing has changed: small ones first, and a share of its bytes for the large ones."""
    schedule = make(small_bytes=10 * SIZE, large_share=0.25)
    begin(schedule, "large", 100, "t")
    for number in range(8):
        begin(schedule, f"s{number}", 10, "t")
    begin(schedule, "other", 100, "u")
    names = [name for name in given_to(schedule, 80) if name != "other"]
    assert names.count("large") == pytest.approx(len(names) / 4, abs=1)


def test_weights_are_shares() -> None:
    """A tenant of weight 3 gets three bytes while one of weight 1 gets one."""
    schedule = make(small_bytes=0)
    begin(schedule, "t", 100, "t", weight=3.0)
    begin(schedule, "u", 100, "u")
    assert Counter(given_to(schedule, 80)) == {"t": 60, "u": 20}


def test_who_was_away_saves_nothing_and_owes_nothing() -> None:
    """A tenant that had nothing to start is level with the others afterwards, whatever it was given before."""
    schedule = make(small_bytes=0)
    begin(schedule, "t", 30, "t")
    begin(schedule, "u", 200, "u")
    given_to(schedule, 60)
    schedule.close("t")
    given_to(schedule, 50)
    begin(schedule, "t2", 50, "t")
    assert 9 <= given_to(schedule, 20).count("t2") <= 11


def test_classes_come_before_tenants() -> None:
    """What aligns a tenant's caches lets everybody's clients go first, also those of a tenant that got more."""
    schedule = make(small_bytes=0)
    begin(schedule, "w", 30, "busy")
    given_to(schedule, 15)
    begin(schedule, "l", 30, "idle", priority="later")
    assert given_to(schedule, 10) == ["w"] * 10


def test_nothing_is_kept_of_tenants_that_left() -> None:
    """However many tenants came and went, what is kept is of those that are there or ahead of them."""
    schedule = make()
    begin(schedule, "stays", 3000, "stays")
    for number in range(300):
        begin(schedule, f"t{number}", 3, f"tenant{number}")
        given_to(schedule, 9)
        schedule.close(f"t{number}")
    assert schedule.open_tenants == 1
    assert all(len(turns._tenants) <= 10 for turns in schedule._turns)
    schedule.close("stays")
    assert schedule.open_tenants == 0 and not any(turns._tenants for turns in schedule._turns)


@settings(deadline=None, max_examples=80)
@given(
    tenants=st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=5), min_size=2, max_size=5),
    sizes=st.lists(st.integers(1, 500), min_size=5, max_size=5),
    weights=st.lists(st.sampled_from([0.5, 1.0, 3.0]), min_size=5, max_size=5),
    small_bytes=st.sampled_from([0, 700, ALL]),
)
def test_no_tenant_is_further_ahead_than_its_head_start(
    tenants: Sequence[Sequence[int]], sizes: Sequence[int], weights: Sequence[float], small_bytes: int
) -> None:
    """While two tenants both have something to start, they are never further apart than a chunk and a head start."""
    schedule = make(small_bytes=small_bytes)
    left: dict[str, int] = {}
    for number, lengths in enumerate(tenants):
        tenant = f"tenant{number}"
        left[tenant] = sum(lengths)
        for index, length in enumerate(lengths):
            name = f"{tenant}:{index}"
            schedule.open(name, numbered(f"{name}-", length), (), "waiting", tenant, weights[number])
            see(schedule, numbered(f"{name}-", length), sizes[number])
    spent = dict.fromkeys(left, 0.0)
    chunk = {f"tenant{number}": sizes[number] / weights[number] for number in range(len(tenants))}
    start = {f"tenant{number}": small_bytes / weights[number] for number in range(len(tenants))}
    while (fetch := schedule.next_fetch(ALL)) is not None:
        tenant = fetch.transfer_id.partition(":")[0]
        for other in left:
            if other != tenant and left[other]:
                assert spent[tenant] <= spent[other] + start[tenant] + 1e-6
        spent[tenant] += chunk[tenant]
        left[tenant] -= 1
        deliver(schedule, fetch)
    assert not any(left.values())
