"""Who is served next, and who has to go."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from gateway.limits.queues import FairQueue, Ticket


def ticket(tenant: str, rank: int = 1, cost: float = 1.0, name: str = "") -> Ticket[str]:
    """One that waits."""
    return Ticket(tenant, rank, cost, name)


def fill(queue: FairQueue[str], *tickets: Ticket[str]) -> None:
    """Let them wait."""
    for one in tickets:
        assert queue.offer(one) is None


def drain(queue: FairQueue[str]) -> list[Ticket[str]]:
    """Serve everybody."""
    served = []
    while (taken := queue.take()) is not None:
        served.append(taken)
    return served


def test_classes_are_strict() -> None:
    """Nobody of a lower class is served while somebody of a higher one waits."""
    queue: FairQueue[str] = FairQueue(10)
    fill(queue, ticket("a", 2), ticket("b", 1), ticket("c", 0), ticket("d", 1))
    assert [one.tenant for one in drain(queue)] == ["c", "b", "d", "a"]
    assert queue.take() is None and len(queue) == 0


def test_a_flood_waits_for_itself() -> None:
    """A tenant with many requests and one with few take turns."""
    queue: FairQueue[str] = FairQueue(100)
    fill(queue, *(ticket("flood") for _ in range(6)), *(ticket("few") for _ in range(3)))
    assert [one.tenant for one in drain(queue)][:6] == ["flood", "few"] * 3


def test_shares_are_of_work() -> None:
    """A tenant with long requests is served fewer of them, so that both get the same work done."""
    queue: FairQueue[str] = FairQueue(100)
    fill(queue, *(ticket("long", cost=4) for _ in range(5)), *(ticket("short", cost=1) for _ in range(20)))
    counts = Counter(one.tenant for one in drain(queue)[:15])
    assert counts == {"long": 3, "short": 12}


def test_nothing_is_saved_up() -> None:
    """A tenant that comes late begins where the others are, and does not make up for the time it was away."""
    queue: FairQueue[str] = FairQueue(100)
    fill(queue, *(ticket("old") for _ in range(9)))
    for _ in range(5):
        queue.take()
    fill(queue, *(ticket("new") for _ in range(4)))
    assert [one.tenant for one in drain(queue)] == ["new", "old", "new", "old", "new", "old", "new", "old"]


def test_a_tenant_that_was_ahead_stays_so_after_a_pause() -> None:
    """Whoever was served ahead does not get a new start by leaving the queue for a moment."""
    queue: FairQueue[str] = FairQueue(100)
    fill(queue, ticket("big", cost=10), ticket("small"), ticket("small"), ticket("small"))
    assert [queue.take() and None, queue.take() and None] == [None, None]
    fill(queue, ticket("big", cost=10))
    assert [one.tenant for one in drain(queue)] == ["small", "small", "big"]


def test_who_leaves_costs_its_tenant_nothing() -> None:
    """A ticket that is withdrawn leaves its tenant's turn as it was; withdrawing twice does nothing."""
    queue: FairQueue[str] = FairQueue(10)
    gone = ticket("a", cost=100)
    fill(queue, gone, ticket("a"), ticket("b"))
    queue.remove(gone)
    queue.remove(gone)
    assert len(queue) == 2
    assert [one.tenant for one in drain(queue)] == ["a", "b"]


def test_a_full_queue_sheds_the_longest_line_of_the_lowest_class() -> None:
    """The newest of the tenant that has the most waiting has to go; of equals, the one that comes."""
    queue: FairQueue[str] = FairQueue(3)
    newest = ticket("flood", name="newest")
    fill(queue, ticket("flood"), ticket("flood"), newest)
    few = ticket("few")
    assert queue.offer(few) is newest
    late = ticket("flood")
    assert queue.offer(late) is late
    assert queue.offer(ticket("urgent", 0)) is not None
    other = ticket("other")
    assert queue.offer(other) is other
    assert [one.tenant for one in drain(queue)] == ["urgent", "flood", "few"]


def test_a_higher_class_does_not_go_for_a_lower_one() -> None:
    """Only the lowest class gives way, also to those above it."""
    queue: FairQueue[str] = FairQueue(2)
    fill(queue, ticket("a", 0), ticket("a", 0))
    low = ticket("b", 1)
    assert queue.offer(low) is low
    assert len(queue) == 2


TICKETS = st.builds(ticket, st.sampled_from("abcd"), st.integers(0, 2), st.floats(1, 1000))
STEPS = st.lists(st.one_of(TICKETS, st.just("take"), st.integers(0, 50)), max_size=40)


@given(STEPS, st.integers(1, 8))
def test_everyone_is_served_shed_or_withdrawn_once(steps: list[Ticket[str] | str | int], most: int) -> None:
    """Over any course: nobody is lost or served twice, each tenant's are served in order, the bound holds."""
    queue: FairQueue[str] = FairQueue(most)
    came: list[Ticket[str]] = []
    ended: list[Ticket[str]] = []
    for step in steps:
        if isinstance(step, Ticket):
            came.append(step)
            shed = queue.offer(step)
            ended += [shed] if shed else []
        elif isinstance(step, int):
            waiting = [one for one in came if one not in ended]
            if step < len(waiting):
                queue.remove(waiting[step])
                ended.append(waiting[step])
        elif (taken := queue.take()) is not None:
            waiting = [one for one in came if one not in ended]
            assert taken.rank == min(one.rank for one in waiting)
            own = [one for one in waiting if (one.tenant, one.rank) == (taken.tenant, taken.rank)]
            assert own[0] is taken
            ended.append(taken)
        assert len(queue) == len(came) - len(ended) <= most
    assert len(ended) == len(set(map(id, ended)))
    assert {*map(id, drain(queue)), *map(id, ended)} == set(map(id, came))


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(1, 100)), min_size=30, max_size=80))
def test_no_tenant_gets_more_than_its_share(asks: list[tuple[str, float]]) -> None:
    """While two tenants wait all the time, the work served to them differs by no more than two requests."""
    queue: FairQueue[str] = FairQueue(1000)
    fill(queue, *(ticket(tenant, cost=cost) for tenant, cost in asks))
    left = Counter(tenant for tenant, _ in asks)
    work: Counter[str] = Counter()
    while (taken := queue.take()) is not None:
        left[taken.tenant] -= 1
        work[taken.tenant] += taken.cost  # type: ignore[assignment]
        waiting = [work[tenant] for tenant in "abc" if left[tenant]]
        if len(waiting) == len({tenant for tenant, _ in asks}):
            assert max(waiting) - min(waiting) <= 200
