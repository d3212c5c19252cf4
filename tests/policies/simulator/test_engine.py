"""One engine: steps shared by prompts and decodes, memory, and jobs that are taken out."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.simulator.engine import Job, SimulatedEngine
from policies.simulator.engine_model import EngineModel
from policies.simulator.parts import EventQueue

MODEL = EngineModel(token_s=0.001, step_s=0.0, weights_s=0.01, budget_tokens=100, kv_tokens=1000)
"""A prompt's token takes 1 ms, a step at least 10 ms."""


class Bench:
    """An engine, and when its jobs began, had their prompt and were over."""

    def __init__(self, model: EngineModel = MODEL) -> None:
        self.timeline = EventQueue()
        self.engine = SimulatedEngine(self.timeline, model)
        self.log: dict[str, float] = {}

    def job(self, name: str, new_tokens: int, decode_tokens: int, context_tokens: int | None = None) -> Job:
        """A job that logs its end as its name, and its prompt's end as name and "p"."""

        def note(key: str) -> None:
            self.log[key] = self.timeline.now_s

        return Job(
            new_tokens if context_tokens is None else context_tokens,
            new_tokens,
            decode_tokens,
            lambda: note(name),
            on_prefilled=lambda: note(f"{name}p"),
        )

    def take_out(self, job: Job) -> None:
        """Stop a job that is not over."""
        if not job.over:
            self.engine.stop(job)

    def submit(self, name: str, new_tokens: int, decode_tokens: int, at_s: float = 0.0, context: int = 0) -> Job:
        """Submit a job at a time."""
        job = self.job(name, new_tokens, decode_tokens, max(context, new_tokens))
        self.timeline.plan(at_s, lambda: self.engine.submit(job))
        return job


def test_prompts_are_cut_and_packed() -> None:
    """A prompt takes a step for each budget; what a step has left is filled with the next prompt."""
    bench = Bench()
    bench.submit("a", 150, 0)
    bench.submit("b", 50, 0)
    bench.timeline.run()
    assert bench.log["ap"] == pytest.approx(0.2)
    assert bench.log["b"] == pytest.approx(0.2)


def test_a_small_last_chunk_costs_a_whole_step() -> None:
    """With nothing to pack it with, a token more than the budget costs the step's least time."""
    alone = {}
    for tokens in (100, 101):
        bench = Bench()
        bench.submit("a", tokens, 0)
        bench.timeline.run()
        alone[tokens] = bench.log["a"]
    assert alone[100] == pytest.approx(0.1)
    assert alone[101] == pytest.approx(0.11)


def test_decodes_run_at_the_steps_pace() -> None:
    """Ten tokens take ten steps, whoever runs beside; one that comes later ends later."""
    bench = Bench()
    bench.submit("a", 0, 10)
    bench.submit("b", 0, 10, at_s=0.05)
    bench.timeline.run()
    assert bench.log["a"] == pytest.approx(0.1)
    assert bench.log["b"] == pytest.approx(0.15)


def test_a_prompt_slows_the_decodes_that_share_its_steps() -> None:
    """During two steps of 100 tokens a decode makes two tokens only."""
    bench = Bench()
    bench.submit("decode", 0, 10)
    bench.submit("prompt", 200, 0, at_s=0.05)
    bench.timeline.run()
    assert bench.log["decode"] == pytest.approx(0.05 + 0.202 + 0.03, abs=0.001)


def test_context_slows_decodes() -> None:
    """Reading KV takes time: twice the context, and memory bound, twice the time."""
    slow = replace(MODEL, weights_s=0.0, kv_read_s=0.0001, kv_tokens=10_000)
    ends = []
    for context in (1000, 2000):
        bench = Bench(slow)
        bench.submit("a", 0, 10, context=context)
        bench.timeline.run()
        ends.append(bench.log["a"])
    assert ends[1] == pytest.approx(2 * ends[0], rel=0.01)


def test_memory_bounds_the_batch() -> None:
    """What does not fit waits for the first to end, and holds back what comes behind it."""
    bench = Bench()
    bench.submit("a", 0, 10, context=600)
    bench.submit("b", 0, 10, context=600)
    bench.submit("c", 0, 10, context=100)
    bench.timeline.run()
    assert bench.log["a"] == pytest.approx(0.1)
    assert bench.log["b"] == pytest.approx(0.2)
    assert bench.log["c"] == pytest.approx(0.2)


def test_a_job_larger_than_the_memory_runs_alone() -> None:
    """Nobody waits forever."""
    bench = Bench()
    bench.submit("a", 0, 10, context=5000)
    bench.timeline.run()
    assert bench.log["a"] == pytest.approx(0.1)


def test_several_tokens_a_step() -> None:
    """With speculation a step makes more than one token."""
    bench = Bench(replace(MODEL, tokens_per_step=2.0))
    bench.submit("a", 0, 10)
    bench.timeline.run()
    assert bench.log["a"] == pytest.approx(0.05)


def test_a_stopped_job_says_what_it_made() -> None:
    """Taken out while it decodes, computes its prompt, waits, or before it came, a job never ends by itself."""
    bench = Bench(replace(MODEL, max_running=2))
    decoding = bench.submit("decoding", 0, 100)
    prompt = bench.submit("prompt", 500, 5, at_s=0.05)
    waiting = bench.submit("waiting", 0, 5, at_s=0.05)
    late = bench.submit("late", 0, 5, at_s=1.0)
    made: list[float] = []
    for job in (waiting, decoding, prompt, late):
        bench.timeline.plan(0.051, lambda job=job: made.append(bench.engine.stop(job)))  # type: ignore[misc]
    bench.timeline.run()
    assert made == [0.0, pytest.approx(5.0), 0.0, 0.0]
    assert bench.log == {"decodingp": 0.0}
    assert (bench.engine.running, bench.engine.kv_used, bench.engine.waiting) == (0, 0, 0)


def test_a_job_that_joins_during_a_step_decodes_after_it() -> None:
    """Its first token comes with the next step; it can be taken out before."""
    bench = Bench()
    bench.submit("prompt", 100, 0)
    bench.submit("joins", 0, 1, at_s=0.05)
    gone, made = bench.submit("gone", 0, 1, at_s=0.05), list[float]()
    bench.timeline.plan(0.06, lambda: made.append(bench.engine.stop(gone)))
    bench.timeline.run()
    assert bench.log["joins"] == pytest.approx(0.11)
    assert "gone" not in bench.log


@given(
    jobs=st.lists(
        st.tuples(st.floats(0, 2), st.integers(0, 300), st.integers(0, 50), st.booleans()), min_size=1, max_size=30
    ),
    most=st.integers(1, 8),
    memory=st.integers(50, 1000),
)
def test_every_job_ends_once_and_not_before_its_time(
    jobs: list[tuple[float, int, int, bool]], most: int, memory: int
) -> None:
    """Whatever comes, each job that is not taken out ends once, no sooner than alone, and nothing is left behind."""
    bench = Bench(replace(MODEL, max_running=most, kv_tokens=memory))
    for number, (at_s, new_tokens, decode_tokens, stopped) in enumerate(jobs):
        job = bench.submit(str(number), new_tokens, decode_tokens, at_s)
        if stopped:
            bench.timeline.plan(at_s + 0.03, lambda job=job: bench.take_out(job))  # type: ignore[misc]
    bench.timeline.run()
    for number, (at_s, new_tokens, decode_tokens, stopped) in enumerate(jobs):
        if not stopped:
            assert bench.log[str(number)] >= at_s + new_tokens * 0.001 + decode_tokens * 0.01 - 1e-6
    assert (bench.engine.running, bench.engine.waiting) == (0, 0)
    assert bench.engine.kv_used == 0
