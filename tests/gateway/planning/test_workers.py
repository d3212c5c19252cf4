"""Simulations side by side give what they give one by one."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import pytest

from gateway.planning.paper import ServedRates, make_cases
from gateway.planning.workers import RateSearch, Workers, open_workers
from tests.gateway.planning.scenarios import small_scenario

T = TypeVar("T")
CASES = list(make_cases(small_scenario(requests=40), ServedRates(2.0, 3.0), 0.9).values())


@pytest.mark.slow
def test_processes_change_nothing() -> None:
    """Two processes return the same results in the same order as none."""
    with open_workers(2, quiet=True) as workers:
        side_by_side = workers.simulate("x", CASES)
    assert side_by_side == Workers(1).simulate("x", CASES)


def test_a_bar_moves_where_somebody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    """With progress shown the results are the same."""
    with open_workers(1) as workers:
        assert workers.simulate("x", CASES[:1]) == Workers(1).simulate("x", CASES[:1])
    capsys.readouterr()


def test_the_search_covers_its_time() -> None:
    """The highest rate is found from below, and more of a fleet serves more."""
    case = replace(CASES[3], rate_per_s=2.0)
    (found,) = Workers(1).find_rates("x", [RateSearch(case, 0.9, 5.0)])
    assert found > 1.0


def test_equal_cases_are_run_once() -> None:
    """What several tables ask for is simulated once, and each of them gets it."""
    asked: list[Sequence[object]] = []

    class Counted(Workers):
        def run(self, text: str, work: Callable[[object], T], tasks: Sequence[object]) -> list[T]:
            asked.append(tasks)
            return super().run(text, work, tasks)

    same, naive = CASES[:2]
    first, second = Counted(1).simulate_groups("x", [{"a": same, "b": naive}, {"c": replace(same)}])
    assert [len(tasks) for tasks in asked] == [2]
    assert first["a"] is second["c"]
    assert (first["a"].case, first["b"].case) == (same, naive)
