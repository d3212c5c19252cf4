"""Scenario files: the documented one, changed values, and what is refused."""

from pathlib import Path

import pytest
import yaml

from gateway.config.fleet_settings import BadSettings
from gateway.planning.scenario import PAPER, load_scenario
from policies.simulator.topologies import build_fleet


def test_the_paper_is_what_was_reported() -> None:
    """43 x A and 32 x B with one line cost 7.1 % less than 88 x A where B is at 1.2 A, and 3.5 % less at 1.3 A."""
    for price, change in ((1.2, -0.071), (1.3, -0.035)):
        scenario = load_scenario("paper", price_b=price)
        cost = build_fleet("pdd", scenario.parts(), scenario.counts).cost
        assert cost / scenario.budget - 1 == pytest.approx(change, abs=0.001)
    assert scenario.pdd.p * scenario.prefill_chips + scenario.pdd.rld * scenario.decode_chips == 43
    assert scenario.traffic.workload(scenario.rules).uncached_tokens == pytest.approx(6_500, rel=0.05)


def test_every_value_of_the_file_has_its_source() -> None:
    """Each value, or the section that it stands in, says whether it was reported or is ours."""
    text = PAPER.read_text(encoding="utf-8")
    sections = text.split("\n\n")
    for name in yaml.safe_load(text):
        (section,) = (part for part in sections if f"\n{name}:" in f"\n{part}")
        assert "[ours]" in section or "[report]" in section or "seed" in section, name


def test_speculation_can_be_switched_off() -> None:
    """The model's own yield holds unless the scenario gives another."""
    assert load_scenario("paper").llm.tokens_per_step == 1.7
    assert load_scenario("paper", tokens_per_step=1.0).llm.tokens_per_step == 1.0


def test_dense_models_get_the_chips_that_they_need() -> None:
    """A model without experts is held whole by each instance, on as many chips as leave room for KV."""
    parts = load_scenario("paper", model="llama-70b", chip_a="H100", chip_b="H200").parts()
    assert (parts.near.cost, parts.relay.cost, parts.far.cost) == (2.0, 2.0, 1.25)


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"model": "gpt-9"}, "model gpt-9 is not known"),
        ({"chip_a": "Z80"}, "chip Z80 is not known"),
        ({"model": "deepseek-v3", "expert_group": 4}, "does not fit"),
        ({"model": "llama-70b", "chip_a": "910B", "mfu": 0.0}, "mfu"),
        ({"unknown": 1}, "unknown"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, object], part: str) -> None:
    """Names that are not known, weights that do not fit and fields that do not exist are errors with their name."""
    with pytest.raises(BadSettings, match=part):
        load_scenario("paper", **changes).parts()


def test_other_files_are_refused(tmp_path: Path) -> None:
    """A file that is no scenario says so."""
    path = tmp_path / "x.yaml"
    path.write_text("- 1\n", encoding="utf-8")
    with pytest.raises(BadSettings, match="not a scenario"):
        load_scenario(str(path))
