"""Simulations side by side, one process each: their results do not depend on how many there are."""

import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import get_context
from typing import TypeVar

from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

from policies.simulator.cases import CaseResult, SimulationCase, run_case, search_rate

T = TypeVar("T")
PRECISION = 0.02


def simulate(case: SimulationCase) -> CaseResult:
    """Run one case with its seed."""
    return run_case(case, random.Random(case.seed))


@dataclass(frozen=True, slots=True)
class RateSearch:
    """What is the highest rate at which ``share`` of a case's requests keep the promises?"""

    case: SimulationCase
    share: float
    seconds: float
    """Time that each simulation covers: in less, a queue that grows without end is not yet long."""


def find_rate(search: RateSearch) -> float:
    """Search, beginning at the case's own rate."""
    case = search.case

    def good(rate_per_s: float) -> float:
        traffic = case.traffic.lasting(search.seconds, rate_per_s)
        return simulate(replace(case, rate_per_s=rate_per_s, traffic=traffic)).report.good

    return search_rate(good, case.rate_per_s, search.share, PRECISION)


class Workers:
    """Runs tasks in ``jobs`` processes, or here where that is one, and shows how far they are."""

    def __init__(self, jobs: int, progress: Progress | None = None) -> None:
        self._jobs = jobs
        self._progress = progress
        self._pool: ProcessPoolExecutor | None = None

    def run(self, text: str, work: Callable[[object], T], tasks: Sequence[object]) -> list[T]:
        """Return the results in the tasks' order."""
        bar = None if self._progress is None else self._progress.add_task(text, total=len(tasks))

        def advance() -> None:
            if self._progress is not None and bar is not None:
                self._progress.advance(bar)

        if self._jobs == 1:
            results = []
            for task in tasks:
                results.append(work(task))
                advance()
            return results
        if self._pool is None:
            self._pool = ProcessPoolExecutor(self._jobs, get_context("spawn"))
        futures: list[Future[T]] = [self._pool.submit(work, task) for task in tasks]
        for _ in as_completed(futures):
            advance()
        return [future.result() for future in futures]

    def simulate(self, text: str, cases: Sequence[SimulationCase]) -> list[CaseResult]:
        """Run cases; equal ones once."""
        distinct: list[SimulationCase] = []
        for case in cases:
            if case not in distinct:
                distinct.append(case)
        results = self.run(text, simulate, distinct)  # type: ignore[arg-type]
        return [results[distinct.index(case)] for case in cases]

    def simulate_groups(self, text: str, groups: Sequence[Mapping[str, SimulationCase]]) -> list[dict[str, CaseResult]]:
        """Run several groups of cases in one go, so that no process waits for the last one of a group."""
        results = iter(self.simulate(text, [case for group in groups for case in group.values()]))
        return [{name: next(results) for name in group} for group in groups]

    def find_rates(self, text: str, searches: Sequence[RateSearch]) -> list[float]:
        """Search for the rates of several fleets."""
        return self.run(text, find_rate, searches)  # type: ignore[arg-type]

    def close(self) -> None:
        """Let the processes end."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


@contextmanager
def open_workers(jobs: int | None, quiet: bool = False) -> Iterator[Workers]:
    """Make workers, as many as there are cores where nothing is said, with bars where somebody looks."""
    columns = (*Progress.get_default_columns()[:-2], MofNCompleteColumn(), TimeRemainingColumn())
    progress = None if quiet else Progress(*columns, transient=True)
    workers = Workers(jobs or len(os.sched_getaffinity(0)), progress)
    try:
        if progress is not None:
            progress.start()
        yield workers
    finally:
        workers.close()
        if progress is not None:
            progress.stop()
