"""``pdd profile``: the curve of an engine whose times are known, and the way of the file into placement."""

import asyncio
import json
import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from backends.base import Take
from backends.errors import EngineTimeout, EngineUnavailable
from backends.types import Capabilities, EngineLoad, LegChunk, LegRequest, LegUsage
from gateway.cli.profile import CannotProfile, Profiler, describe, plan_points
from gateway.config.fleet_settings import BadSettings
from gateway.fleet.curves import BadCurve, CurveFile, read_curve, write_curve
from gateway.redis.client import SharedRedis
from policies.valley import PrefillCurve
from tests.fakes.script import Refuse, Script
from tests.fakes.sglang import FakeSglang
from tests.gateway.cli.fleet import MODEL, Fleet, pdd

CHUNK = 512


@dataclass(slots=True)
class ClockedEngine:
    """An engine on a clock of its own: 0.1 ms a token, and 30 ms more for a last chunk of less than 32 tokens."""

    id: str = "clocked"
    now_s: float = 0.0
    reuses: bool = True
    reports: bool = True
    timeout_after_s: float = 1e9
    prompts: list[list[int]] = field(default_factory=list)

    def clock(self) -> float:
        """Return the time."""
        return self.now_s

    async def generate(self, leg: LegRequest, take: Take) -> None:
        """Take the time that the part of the prompt takes which no earlier prompt began with."""
        prompt = list(leg.prompt)
        cached = max((shared(prompt, old) for old in self.prompts), default=0) // 16 * 16 if self.reuses else 0
        self.prompts.append(prompt)
        uncached = len(prompt) - cached
        self.now_s += uncached * 1e-4 + (0.03 if uncached > CHUNK and uncached % CHUNK < 32 else 0.0)
        if self.now_s > self.timeout_after_s:
            raise EngineTimeout("too late")
        take(LegChunk((7,)))
        take(LegChunk(usage=LegUsage(len(prompt), 1, cached if self.reports else None)))

    async def probe(self) -> Capabilities:
        """Not asked here."""
        raise EngineUnavailable("not here")

    async def load(self) -> EngineLoad:
        """Not asked here."""
        raise EngineUnavailable("not here")

    async def aclose(self) -> None:
        """Nothing is open."""


def shared(one: list[int], other: list[int]) -> int:
    """Length of the common prefix."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def profiler(engine: ClockedEngine) -> Profiler:
    """A profiler of that engine."""
    return Profiler(engine, MODEL, 16, 1000, random.Random(3), engine.clock)


def test_points_are_planned_short_first() -> None:
    """Short prompts come first, those without a hit are always there, and none is longer than the engine takes."""
    assert plan_points((200, 100), (0.5,), 250) == [(0.0, 100), (0.0, 200), (0.5, 100)]


async def test_the_curve_is_that_of_the_engine() -> None:
    """Medians are the engine's times, cold and with a warmed prefix, and the valley is found where it is."""
    engine = ClockedEngine()
    measuring = profiler(engine)
    await measuring.measure(plan_points((256, 512, 528, 640), (0.5,), 8000), repeats=2, budget_s=60)
    found = measuring.curve_file("http://e")
    assert found.tokens == (256, 512, 528, 640)
    assert found.seconds == pytest.approx((0.0256, 0.0512, 0.0828, 0.064))
    warm = {one.uncached_tokens: one.seconds for one in found.measured if one.hit_rate == 0.5}
    assert warm == pytest.approx({256: 0.0256, 512: 0.0512, 528: 0.0828, 640: 0.064})
    assert {one.samples for one in found.measured} == {2}
    lines = describe(found, measuring.skipped)
    assert "hit 0%: valley at 528 to 528 uncached tokens: up to 18.80 ms more than 640 take" in lines
    assert "hit 0%: step of 30.00 ms between 512 and 528 tokens" in lines


async def test_time_is_bounded() -> None:
    """When the time is over the rest is left out, and said to be."""
    engine = ClockedEngine()
    measuring = profiler(engine)
    await measuring.measure(plan_points((1000, 2000, 3000), (), 8000), repeats=3, budget_s=0.65)
    assert (engine.now_s < 1.0, measuring.skipped) == (True, 5)
    assert describe(measuring.curve_file("http://e"), measuring.skipped)[-2:] == [
        "hit 0%: no valley",
        "5 tries were left out: no time (--budget-s), or no reuse of the prefix",
    ]


async def test_an_engine_that_is_too_slow() -> None:
    """A try that outlives the time is no error, but fewer than two lengths are no curve; a stall before that is one."""
    engine = ClockedEngine(timeout_after_s=0.15)
    measuring = profiler(engine)
    await measuring.measure([(0.0, 1000), (0.0, 2000)], repeats=1, budget_s=0.15)
    with pytest.raises(CannotProfile, match="more time"):
        measuring.curve_file("http://e")
    with pytest.raises(EngineTimeout):
        await profiler(ClockedEngine(timeout_after_s=0.15)).measure([(0.0, 2000)], repeats=1, budget_s=60)


async def test_prefixes_that_are_not_reused_say_nothing() -> None:
    """A try whose prefix the engine says that it computed anew is left out; where it does not say, the try counts."""
    points = plan_points((256, 512), (0.9,), 8000)
    silent, honest = profiler(ClockedEngine(reuses=False, reports=False)), profiler(ClockedEngine(reuses=False))
    for measuring in (silent, honest):
        await measuring.measure(points, repeats=1, budget_s=600)
    assert (silent.skipped, honest.skipped) == (0, 2)
    assert {one.hit_rate for one in honest.curve_file("http://e").measured} == {0.0}


async def test_the_command_measures_writes_and_the_settings_read(
    fleet: Fleet, shared_redis: SharedRedis, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file that a run writes is what `engines[].prefill_curve` takes, and placement sees the curve."""
    out = fleet.folder / "curve.json"
    options: list[str | Path] = ["--lengths", "64,128", "--hit-rates", "0.5", "--repeats", "1", "--out", out]
    assert await pdd("profile", "--engine", fleet.engines["p1"].url, "--model", MODEL, *options) == 0
    told = capsys.readouterr().out
    assert "milliseconds to the first token" in told and f"written to {out}" in told
    assert {call.body["max_tokens"] for call in fleet.engines["p1"].calls} == {1}
    engines = fleet.settings()["engines"]
    engines[0]["prefill_curve"] = str(out)
    async with fleet.gateway({}, shared_redis, engines=engines) as gateway:
        curves = {view.id: view.curve for view in gateway.pools.views(MODEL)}
    curve = await asyncio.to_thread(read_curve, out)
    assert curves == {"p1": curve, "rld1": None, "md1": None}
    assert curve.tokens == (64, 128)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "other"], "the engine serves tiny, not other"),
        (["--model", MODEL, "--api-key-env", "NO_SUCH_KEY"], "NO_SUCH_KEY is not set"),
        (["--model", MODEL, "--lengths", "64"], "fewer than two lengths"),
        (["--model", MODEL, "--kind", "other"], "kind: there is no engine adapter 'other'"),
        (["--model", MODEL, "--options", '{"tensor": 2}'], "options.tensor: there is no such option"),
    ],
)
async def test_what_cannot_be_profiled(
    fleet: Fleet, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    """Errors are told in one line with status 1."""
    assert await pdd("profile", "--engine", fleet.engines["p1"].url, *arguments) == 1
    assert f"pdd profile: {message}" in capsys.readouterr().err


async def test_an_engine_that_refuses(fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    """The engine's own words say why it does not take the prompts."""
    fleet.engines["p1"].script = Script(fault=Refuse(400, {"error": {"message": "token id out of range"}}))
    assert await pdd("profile", "--engine", fleet.engines["p1"].url, "--model", MODEL) == 1
    assert "token id out of range" in capsys.readouterr().err


async def test_other_kinds_of_engines(fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    """An engine is asked in the words of its kind, with the options that the settings would hold."""
    async with FakeSglang() as sglang:
        options = ["--kind", "sglang", "--options", '{"prefill": null}', "--lengths", "64,128", "--repeats", "1"]
        command = ["profile", "--engine", sglang.url, "--model", sglang.served_model, "--hit-rates", "0"]
        assert await pdd(*command, *options) == 0
    assert "milliseconds to the first token" in capsys.readouterr().out
    assert [len(body["input_ids"]) for body in sglang.bodies][-2:] == [64, 128]


@pytest.mark.parametrize(
    "option", [["--lengths", "64,x"], ["--options", "[]"], ["--options", "{"], ["--hit-rates", "1"], ["--repeats", "0"]]
)
async def test_senseless_options(option: list[str]) -> None:
    """Options are refused as any command's are."""
    with pytest.raises(SystemExit):
        await pdd("profile", "--engine", "http://127.0.0.1:1", "--model", MODEL, *option)


@pytest.mark.parametrize("text", ["{", "[]", '{"tokens": [1, 2], "seconds": [1, 0]}'])
async def test_bad_curve_files(fleet: Fleet, shared_redis: SharedRedis, text: str) -> None:
    """A file that holds no curve stops the start, and the key is named."""
    path = await fleet.put("curve.json", text.encode())
    engines = fleet.settings()["engines"]
    engines[0]["prefill_curve"] = str(path)
    with pytest.raises(BadSettings, match=r"engines\[p1\].prefill_curve: .*curve.json"):
        async with fleet.gateway({}, shared_redis, engines=engines):
            pass


def test_a_curve_file_comes_back(tmp_path: Path) -> None:
    """What is written is read; extra entries do not matter, a missing file is an error."""
    write_curve(tmp_path / "c", CurveFile((1, 2), (0.5, 0.75), "http://e", "m"))
    assert read_curve(tmp_path / "c") == PrefillCurve((1, 2), (0.5, 0.75))
    assert json.loads((tmp_path / "c").read_bytes())["model"] == "m"
    with pytest.raises(BadCurve, match="cannot read"):
        read_curve(tmp_path / "none")
