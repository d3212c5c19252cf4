"""The study of the reported scenario, on a small fleet: everything asked for is in it."""

import random

import pytest

from gateway.planning import paper
from gateway.planning.page import paper_page
from gateway.planning.paper import IDEAS, REPORTED, VARIATIONS, compare, explain_miss, study_paper
from gateway.planning.tables import make_console, print_paper
from gateway.planning.workers import Workers
from policies.simulator.cases import run_case
from tests.gateway.planning.scenarios import small_scenario

FEW = (VARIATIONS[0], VARIATIONS[-1])


@pytest.mark.timeout(300)
def test_the_study_has_every_figure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Each figure beside the reported one, each idea on and off, each assumption changed; all of it is shown."""
    monkeypatch.setattr(paper, "VARIATIONS", FEW)
    scenario = small_scenario(requests=50, repeats=2)
    study = study_paper(scenario, Workers(1))
    tables = study.tables
    assert set(tables["paper"]) == set(REPORTED)
    for row in tables["paper"].values():
        assert row["deviation"] == pytest.approx((row["ours"] - row["paper"]) / abs(row["paper"]))
        assert ("decided_by" in row) == (abs(row["deviation"]) > 0.2)
    assert set(tables["ablation"]) == set(IDEAS)
    for row in tables["ablation"].values():
        assert set(row) == {"bcr", "ttft_p50_s", "ttft_p99_s", "gap_p99_s", "off"}
    assert set(tables["sensitivity"]) == {"as stated", paper.NO_CACHE, *(name for name, _ in FEW)}
    assert list(tables["line_loads"]) == ["90%"]
    print_paper(tables, make_console())
    shown = capsys.readouterr().out
    page = paper_page(scenario, tables, study.results)
    for text in (shown, page):
        assert all(words in text for words in ("TTFT P99, naive", "RLD writes while the KV crosses", "as stated"))
    assert page.count("<svg") >= 5
    assert "http" not in page.replace("http-equiv", "")


def test_each_idea_changes_something() -> None:
    """On and off differ in the fleet or the rules, and both can be run."""
    scenario = small_scenario(requests=40)
    case = paper.make_cases(scenario, paper.ServedRates(2.0, 3.0), 0.95)["pdd"]
    for _, on, off in IDEAS.values():
        assert (on(case).fleet, on(case).rules) != (off(case).fleet, off(case).rules)
        for one in (on(case), off(case)):
            assert run_case(one, random.Random(1)).report.requests == 36


def test_a_miss_is_explained_by_what_brings_it_nearest() -> None:
    """The assumption whose figure is nearest to the reported one is named; none, where none helps."""
    far = dict.fromkeys(REPORTED, 0.0)
    near = {name: value for name, (value, _) in REPORTED.items()}
    assert explain_miss("rate_gain", 0.9, {"near": near, "far": far}).startswith("near")
    assert "none" in explain_miss("rate_gain", 0.3, {"far": far})
    same = {"paper": 0.278, "ours": 0.278, "deviation": 0.0, "spread": 0.0}
    assert compare([near, near], {"far": far})["rate_gain"] == same
    assert compare([near, far], {"near": near})["rate_gain"]["spread"] == pytest.approx(0.139)
