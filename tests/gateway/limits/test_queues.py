"""The queue before the engines, as requests see it."""

import asyncio

import pytest

from gateway.limits.queues import AdmissionQueue, AdmissionQueues, Overloaded


async def settle() -> None:
    """Let every task go as far as it can."""
    for _ in range(5):
        await asyncio.sleep(0)


def ask(admission: AdmissionQueue, tenant: str = "t", rank: int = 1, answers: int = 1) -> "asyncio.Task[None]":
    """Ask for a place."""
    return asyncio.create_task(admission.enter(tenant, rank, 100, answers))


async def test_no_bound_lets_all_in() -> None:
    """Without a bound nobody waits."""
    admission = AdmissionQueue(lambda: None, 0, 1.0)
    for _ in range(1000):
        await admission.enter("t", 1, 1)
    assert (admission.running, admission.waiting) == (1000, 0)


async def test_the_next_goes_when_one_leaves() -> None:
    """Who waits gets the place of who leaves, by class first."""
    admission = AdmissionQueue(lambda: 1, 10, 10.0)
    await admission.enter("t", 1, 1)
    low, high = ask(admission, rank=2), ask(admission, rank=0)
    await settle()
    assert admission.waiting == 2 and not high.done()
    admission.leave()
    await high
    assert not low.done()
    admission.leave()
    await low
    assert (admission.running, admission.waiting) == (1, 0)


async def test_who_comes_later_does_not_pass_those_that_wait() -> None:
    """A place that is free while others wait is theirs."""
    bound = 1
    admission = AdmissionQueue(lambda: bound, 10, 10.0)
    await admission.enter("t", 1, 1)
    first = ask(admission, "a")
    await settle()
    bound = 2
    second = ask(admission, "b")
    await settle()
    assert first.done() and not second.done()
    second.cancel()


async def test_a_client_that_leaves_is_out_at_once() -> None:
    """A cancelled request does not wait on, and no place is lost with it."""
    admission = AdmissionQueue(lambda: 1, 10, 10.0)
    await admission.enter("t", 1, 1)
    gone, waiting = ask(admission, "a"), ask(admission, "b")
    await settle()
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    assert admission.waiting == 1
    admission.leave()
    await waiting
    assert admission.running == 1


async def test_a_client_that_leaves_as_its_turn_comes_hands_it_on() -> None:
    """A turn given to a request that is cancelled in the same moment goes to the next."""
    admission = AdmissionQueue(lambda: 1, 10, 10.0)
    await admission.enter("t", 1, 1)
    gone, waiting = ask(admission, "a"), ask(admission, "b")
    await settle()
    admission.leave()
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    await waiting
    assert (admission.running, admission.waiting) == (1, 0)


async def test_nobody_waits_longer_than_the_deadline() -> None:
    """After the deadline the request is refused and holds nothing."""
    admission = AdmissionQueue(lambda: 1, 10, 0.01)
    await admission.enter("t", 1, 1)
    with pytest.raises(Overloaded):
        await admission.enter("t", 1, 1)
    assert (admission.running, admission.waiting) == (1, 0)


async def test_a_full_queue_refuses_at_once() -> None:
    """Beyond the bound the flood's newest is refused, not the tenant that has only one."""
    admission = AdmissionQueue(lambda: 1, 2, 10.0)
    await admission.enter("t", 1, 1)
    flood = [ask(admission, "flood") for _ in range(2)]
    await settle()
    few = ask(admission, "few")
    await settle()
    with pytest.raises(Overloaded):
        await flood[1]
    for task in (flood[0], few):
        assert not task.done()
        task.cancel()


async def test_several_answers_take_several_places() -> None:
    """A request for three choices counts three, and frees three."""
    admission = AdmissionQueue(lambda: 3, 10, 10.0)
    await admission.enter("t", 1, 1, answers=3)
    waiting = [ask(admission, answers=2), ask(admission)]
    await settle()
    admission.leave(3)
    await asyncio.gather(*waiting)
    assert admission.running == 3


async def test_models_do_not_wait_for_each_other() -> None:
    """While one model is full another one's requests go on; what runs and waits is counted over all."""
    queues = AdmissionQueues({"small": 1, "large": 2}.get, 10, 10.0)
    await queues.of("small").enter("t", 1, 1)
    waiting = ask(queues.of("small"))
    await settle()
    await queues.of("large").enter("t", 1, 1)
    assert (queues.running, queues.waiting) == (2, 1)
    queues.of("small").leave()
    await waiting
    assert (queues.running, queues.waiting) == (2, 0)
