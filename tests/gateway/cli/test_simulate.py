"""``pdd simulate`` and ``pdd plan``: fleets compared, a plan made, files that other commands take."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.__main__ import main
from gateway.cli.planning import read_link_gbit
from gateway.config.fleet_settings import BadSettings
from gateway.config.settings import parse_settings
from gateway.planning.scenario import PAPER
from policies.rule_documents import build_rules
from policies.simulator.topologies import TOPOLOGIES
from tests.gateway.planning.scenarios import SMALL

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def scenario(tmp_path: Path) -> str:
    """A file with a small scenario."""
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(PAPER.read_text(encoding="utf-8")), **SMALL}), encoding="utf-8")
    return str(path)


@pytest.fixture
def trace(tmp_path: Path) -> str:
    """A trace of conversations whose prompts grow."""
    rows = [
        {
            "timestamp": 400 * number,
            "input_length": 4096 + 512 * (number // 10),
            "output_length": 100,
            "hash_ids": [number % 10 * 1000 + block for block in range(8 + number // 10)],
        }
        for number in range(150)
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return str(path)


def simulate(*args: str) -> int:
    """Run the command in this process."""
    return main(["simulate", "--jobs", "1", *args])


def test_topologies_are_compared(scenario: str, trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A trace runs over the four at equal cost; the figures and the page hold them all, the same with the same seed."""
    outs = [tmp_path / "one.json", tmp_path / "two.json"]
    for out in outs:
        args = ("--scenario", scenario, "--trace", trace, "--json", str(out), "--html", str(tmp_path / "page.html"))
        assert simulate(*args) == 0
    tables: dict[str, Any] = json.loads(outs[0].read_bytes())
    assert outs[0].read_bytes() == outs[1].read_bytes()
    assert set(tables["topologies"]) == set(TOPOLOGIES)
    costs = [one["cost"] for one in tables["topologies"].values()]
    assert max(costs) <= tables["budget"] + 1e-9
    assert all(one["requests"] == 150 and one["good"] > 0 for one in tables["topologies"].values())
    assert all(name in capsys.readouterr().out or name for name in TOPOLOGIES)
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.count("<svg") >= 3
    assert all(name in page for name in TOPOLOGIES)


def test_a_configuration_is_simulated(scenario: str, trace: str, tmp_path: Path) -> None:
    """The gateway's own file, with chips added, is a topology, under its own rules or those of a document."""
    config = tmp_path / "gateway.yaml"
    engines: list[dict[str, object]] = [
        {
            "id": "p",
            "role": "P",
            "model": "m",
            "region": "a",
            "url": "http://p:1",
            "chip": "8xH200",
            "prefill_curve": "c",
        },
        {"id": "r", "role": "RLD", "model": "m", "region": "a", "url": "http://r:1", "chip": "H200"},
        {
            "id": "m",
            "role": "MD",
            "model": "m",
            "region": "b",
            "url": "http://m:1",
            "chip": "2xH20",
            "price_per_hour": 3,
        },
    ]
    link = {"source": "a", "dest": "b", "bridge": "http://b:1", "rate_mbit": 10_000}
    document = {"models": [{"name": "m", "path": "/m"}], "engines": engines, "links": [link]}
    config.write_text(yaml.safe_dump(document), encoding="utf-8")
    (tmp_path / "c").write_text('{"tokens": [64, 8192], "seconds": [0.02, 0.5]}', encoding="utf-8")
    rules, out = tmp_path / "rules.yaml", tmp_path / "out.json"
    rules.write_text("pipelines: [direct]\n", encoding="utf-8")
    args = ("--scenario", scenario, "--trace", trace, "--topology", str(config), "--json", str(out))
    assert simulate(*args, "--rules", str(rules)) == 0
    found = json.loads(out.read_bytes())["topologies"]["gateway.yaml"]
    assert found["counts"] == {"P": 1, "RLD": 1, "MD": 1}
    assert not any(plan.startswith("relay") for plan in found["plans"])
    engines[1]["chip"] = "9x?"
    config.write_text(yaml.safe_dump(document), encoding="utf-8")
    assert simulate(*args) == 2


@pytest.mark.parametrize(
    ("engines", "part"),
    [
        ([{"role": "MD"}], "say what it runs on"),
        ([{"role": "P", "chip": "H200"}], "no MD"),
        ([{"role": "MD", "chip": "H200", "prefill_curve": "none.json"}], "none.json"),
    ],
)
def test_a_configuration_that_says_too_little_is_refused(
    engines: list[dict[str, str]], part: str, trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An engine without a chip, a fleet without MD and a missing curve are errors with their place."""
    config = tmp_path / "gateway.yaml"
    whole = [{"id": "e", "model": "m", "region": "a", "url": "http://e:1", **one} for one in engines]
    config.write_text(yaml.safe_dump({"models": [{"name": "m", "path": "/m"}], "engines": whole}), encoding="utf-8")
    assert simulate("--trace", trace, "--topology", str(config)) == 2
    assert part in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (["--chips", "H100"], "two are needed"),
        (["--chips", "H100,Z80"], "Z80 is not known"),
        (["--chips", "H100=1,H200"], "both prices"),
        (["--chips", "H100=x,H200=1"], "a price is a number"),
        (["--link", "fast"], "like 100g"),
        (["--slo", "joy=1"], "can be promised"),
        (["--slo", "ttft=x"], "a number of seconds"),
        (["--slo", "ttft=0"], "ttft_s"),
        (["--model", "gpt-9"], "gpt-9 is not known"),
        (["--scenario", "none.yaml"], "cannot read"),
    ],
)
def test_options_that_cannot_be_are_refused(options: list[str], part: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What is wrong is said, and nothing is simulated."""
    assert simulate("--agents", "--requests", "20", *options) == 2
    assert part in capsys.readouterr().err


def test_links() -> None:
    """Rates are read in gigabits and megabits."""
    assert read_link_gbit("100g") == 100.0
    assert read_link_gbit("500M") == 0.5
    with pytest.raises(BadSettings):
        read_link_gbit("100")


@pytest.mark.parametrize(
    ("options", "verdict"),
    [
        (["--chips", "950PR=1,950DT=1.25"], "PDD pays"),
        (["--chips", "H200=1,H200=1.5"], "PDD does not pay"),
    ],
)
def test_the_closed_form_says_when_it_pays(
    options: list[str], verdict: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """For a chip that decodes better it pays, for the same chip at a higher price it does not, and it says why."""
    assert main(["plan", "--agents", "--rate", "6", "--quick", *options]) == 0
    shown = capsys.readouterr().out
    assert verdict in shown
    assert ("against PDD: to decode a request costs" in shown) == (verdict == "PDD does not pay")


def test_a_plan_can_be_loaded(scenario: str, trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The search prints a frontier and a verdict; its rules are a document, its topology a configuration."""
    rules, topology, out = (tmp_path / name for name in ("rules.yaml", "gateway.yaml", "plan.json"))
    files = ("--rules-out", str(rules), "--topology-out", str(topology), "--json", str(out))
    args = ["--scenario", scenario, "--traffic", trace, "--rate", "4", "--slo", "ttft=5,total=20,itl=0.1"]
    assert main(["plan", "--jobs", "1", *args, "--link", "10g", *files]) == 0
    shown = capsys.readouterr().out
    assert "frontier" in shown
    found = json.loads(out.read_bytes())
    assert found["pays"] == ("PDD pays." in shown.replace("\n", " "))
    assert found["best"]["topology"] == "pdd"
    assert found["same_region"]["topology"] == "same-dc-homogeneous"
    rivals = [one for one in found["candidates"] if one["chips"] == found["same_region"]["chips"]]
    assert found["same_region"]["served_by_cost"] == max(one["served_by_cost"] for one in rivals)
    assert build_rules(yaml.safe_load(rules.read_text(encoding="utf-8"))).stable.slo.ttft_s == 5
    settings = parse_settings(yaml.safe_load(topology.read_text(encoding="utf-8")))
    assert sum(engine.role == "MD" for engine in settings.engines) == found["best"]["MD"]
    assert set(found["sensitivity"]) > {"as given", "twice the traffic"}
