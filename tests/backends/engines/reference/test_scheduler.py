from hypothesis import given, settings
from hypothesis import strategies as st

from backends.engines.reference.blocks import BlockPool
from backends.engines.reference.scheduler import Scheduler, StepLimits, StepPlan
from backends.engines.reference.sequence import Params, Sequence, SequencePhase


def make(tokens: list[int], max_tokens: int = 4, priority: int = 0, salt: str | None = None) -> Sequence:
    """A sequence over blocks of 4 tokens."""
    return Sequence("s", tokens, Params(max_tokens=max_tokens, priority=priority, cache_salt=salt), 4)


def run_step(scheduler: Scheduler, decision: StepPlan) -> list[Sequence]:
    """Pretend that the step was computed; sequences that got a token."""
    scheduler.complete(decision.work)
    sampled = [item.sequence for item in decision.work if item.samples]
    for sequence in sampled:
        sequence.tokens.append(7)
    return sampled


def test_decoding_goes_before_prompts_and_prompts_fill_the_rest() -> None:
    """A long prompt is cut to what the budget leaves beside the tokens of decoding sequences."""
    scheduler = Scheduler(BlockPool(64, 4), StepLimits(step_tokens=8))
    short, long = make([1, 2]), make(list(range(20)))
    scheduler.add(short)
    run_step(scheduler, scheduler.schedule())
    scheduler.add(long)
    chunks = []
    while not long.output_tokens:
        decision = scheduler.schedule()
        chunks.append([(item.sequence is short, item.start, item.tokens) for item in decision.work])
        run_step(scheduler, decision)
    assert chunks[0] == [(True, 2, 1), (False, 0, 7)]
    assert [work[1][2] for work in chunks] == [7, 7, 6]


def test_cached_prefix_is_reused_but_the_last_token_is_computed() -> None:
    """An identical prompt computes only what is needed for its first token."""
    pool = BlockPool(64, 4)
    scheduler = Scheduler(pool, StepLimits())
    first, again = make(list(range(8))), make(list(range(8)))
    scheduler.add(first)
    run_step(scheduler, scheduler.schedule())
    scheduler.finish(first)
    scheduler.add(again)
    (work,) = scheduler.schedule().work
    assert (work.start, work.tokens, again.cached_tokens) == (4, 4, 4)


def test_another_salt_finds_nothing() -> None:
    """Equal prompts of two tenants share no block."""
    scheduler = Scheduler(BlockPool(64, 4), StepLimits())
    first, other = make(list(range(9)), salt="a"), make(list(range(9)), salt="b")
    scheduler.add(first)
    run_step(scheduler, scheduler.schedule())
    scheduler.finish(first)
    scheduler.add(other)
    (work,) = scheduler.schedule().work
    assert (work.start, other.cached_tokens) == (0, 0)


def test_a_large_gap_is_fetched_and_a_small_one_computed() -> None:
    """A prompt goes to the store when it lacks more than the bound, up to its last full chunk."""
    scheduler = Scheduler(BlockPool(64, 4), StepLimits(store_chunk_tokens=8, min_fetch_tokens=10))
    small, large = make(list(range(10))), make(list(range(50, 75)))
    scheduler.add(small)
    scheduler.add(large)
    decision = scheduler.schedule()
    assert [item.sequence for item in decision.work] == [small]
    (fetch,) = decision.fetches
    assert (fetch.sequence, fetch.start, fetch.end) == (large, 0, 24)
    assert large.phase is SequencePhase.FETCHING
    scheduler.fetched(fetch, 16)
    assert large.cached_tokens == 16
    work = next(item for item in scheduler.schedule().work if item.sequence is large)
    assert (work.start, work.tokens) == (16, 9)


def test_a_sequence_that_ends_while_it_fetches_keeps_its_blocks_until_the_fetch_ends() -> None:
    """The fetch may still write into them."""
    pool = BlockPool(8, 4)
    scheduler = Scheduler(pool, StepLimits(store_chunk_tokens=4, min_fetch_tokens=0))
    sequence = make(list(range(9)))
    scheduler.add(sequence)
    (fetch,) = scheduler.schedule().fetches
    scheduler.finish(sequence)
    assert pool.available_blocks == 5
    scheduler.fetched(fetch, 8)
    assert pool.available_blocks == 8
    assert scheduler.running == 0


def test_the_youngest_gives_way_when_blocks_run_out() -> None:
    """The older sequence goes on; the younger one keeps its tokens and gets another turn."""
    scheduler = Scheduler(BlockPool(4, 4), StepLimits())
    old, young = make(list(range(8)), 9), make(list(range(20, 28)), 9)
    for sequence in (old, young):
        scheduler.add(sequence)
    run_step(scheduler, scheduler.schedule())
    decision = scheduler.schedule()
    assert decision.preempted == 1
    assert [item.sequence for item in decision.work] == [old]
    assert young.phase is SequencePhase.WAITING and young.output_tokens == 1
    scheduler.finish(old)
    (work,) = scheduler.schedule().work
    assert work.sequence is young and work.start + work.tokens == 9


def test_priority_goes_before_arrival() -> None:
    """A lower number is admitted first."""
    scheduler = Scheduler(BlockPool(8, 4), StepLimits(running_sequences=1))
    late, urgent = make([1], priority=1), make([2])
    scheduler.add(late)
    scheduler.add(urgent)
    assert [item.sequence for item in scheduler.schedule().work] == [urgent]
    assert scheduler.waiting == 1


@settings(max_examples=80, deadline=None)
@given(
    prompts=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=20), min_size=1, max_size=6),
    data=st.data(),
    blocks=st.integers(8, 20),
    budget=st.integers(1, 16),
    fetching=st.booleans(),
)
def test_every_sequence_ends_and_no_block_is_lost(
    prompts: list[list[int]], data: st.DataObject, blocks: int, budget: int, fetching: bool
) -> None:
    """Whatever the pool, the budget, fetches and aborts: all end, each token is computed once its blocks are held."""
    pool = BlockPool(blocks, 4)
    limits = StepLimits(step_tokens=budget, store_chunk_tokens=4 if fetching else 0, min_fetch_tokens=2)
    scheduler = Scheduler(pool, limits)
    living = [make(prompt, max_tokens=data.draw(st.integers(1, 8))) for prompt in prompts]
    for sequence in living:
        scheduler.add(sequence)
    for _ in range(400):
        decision = scheduler.schedule()
        for fetch in decision.fetches:
            scheduler.fetched(fetch, data.draw(st.integers(fetch.start, fetch.end)) // 4 * 4)
        assert sum(item.tokens for item in decision.work) <= budget
        for item in decision.work:
            assert len(item.sequence.blocks) * 4 >= item.start + item.tokens
            assert item.start == item.sequence.computed_tokens
        run_step(scheduler, decision)
        pool.check_integrity()
        for sequence in list(living):
            aborts = data.draw(st.integers(0, 30)) == 0
            if aborts or sequence.output_tokens >= sequence.params.max_tokens:
                scheduler.finish(sequence)
                living.remove(sequence)
        if not living:
            break
    assert not living
    assert pool.available_blocks == blocks
    assert (scheduler.running, scheduler.waiting) == (0, 0)
