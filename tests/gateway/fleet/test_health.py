"""How instances are found, lost and found again."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import pytest

from backends.engines.vllm import VllmEngine
from backends.errors import EngineBroken, EngineUnavailable
from gateway.fleet.health import HealthWatch
from gateway.fleet.pools import Instance, InstanceSpec
from policies.types import Role
from tests.fakes.engine import FakeEngine
from tests.gateway.fleet.seams import ScriptedEngine, build_instance


class Known:
    """Notes which instances said what they are, and in which boot."""

    def __init__(self) -> None:
        self.boots: list[tuple[str, str | None]] = []

    def __call__(self, instance: Instance) -> None:
        """Note one."""
        assert instance.capabilities is not None
        self.boots.append((instance.spec.id, instance.capabilities.boot_id))


@pytest.fixture
def known() -> Known:
    """What was said."""
    return Known()


@asynccontextmanager
async def run_watch(
    *instances: Instance, on_known: Callable[[Instance], None], interval_s: float = 60.0
) -> AsyncGenerator[HealthWatch, None]:
    """Watch instances until the block ends."""
    watch = HealthWatch(list(instances), interval_s, on_known)
    await watch.start()
    try:
        yield watch
    finally:
        await watch.aclose()


async def test_an_instance_is_probed_once_and_then_read(known: Known) -> None:
    """An engine that answers is probed once; later looks read its load only."""
    engine = ScriptedEngine(running=3)
    instance = build_instance(engine)
    async with run_watch(instance, on_known=known) as watch:
        await watch.check(instance)
        await watch.check(instance)
    assert (engine.probes, engine.loads) == (1, 3)
    assert instance.reachable
    assert instance.load is not None and instance.load.running == 3
    assert known.boots == [("p1", "boot1")]


async def test_a_lost_instance_comes_back(known: Known) -> None:
    """OPS-08: an instance that does not answer takes no legs; once it answers, it is probed and takes them again."""
    engine = ScriptedEngine()
    instance = build_instance(engine)
    async with run_watch(instance, on_known=known) as watch:
        engine.error = EngineUnavailable("away")
        await watch.check(instance)
        assert (instance.reachable, instance.load, instance.last_error) == (False, None, "away")
        engine.error = None
        instance.charges.unnamed, instance.quarantined_until_s = 5, 1e9
        await watch.check(instance)
    assert instance.usable(0.0)
    assert instance.failures == 0
    assert engine.probes == 2


@pytest.mark.parametrize("tells_boot", [True, False])
async def test_a_restart_is_told_with_its_boot_id(known: Known, tells_boot: bool) -> None:
    """OPS-02: a restarted engine is made known with its new boot id, after a gap in its answers or without one."""
    engine = ScriptedEngine(tells_boot=tells_boot)
    instance = build_instance(engine)
    async with run_watch(instance, on_known=known) as watch:
        if not tells_boot:
            engine.error = EngineUnavailable("away")
            await watch.check(instance)
        engine.error, engine.boot_id = None, "boot2"
        await watch.check(instance)
        await watch.check(instance)
    assert known.boots == [("p1", "boot1"), ("p1", "boot2")]
    assert instance.reachable


async def test_a_restart_with_another_model_takes_it_out(known: Known) -> None:
    """An engine that comes back with another model takes no more legs, and says why."""
    engine = ScriptedEngine()
    instance = build_instance(engine)
    async with run_watch(instance, on_known=known) as watch:
        engine.boot_id, engine.models = "boot2", ("other",)
        await watch.check(instance)
        assert not instance.reachable
        assert instance.last_error == "serves other, not m"
        engine.models = ()
        await watch.check(instance)
        assert instance.last_error == "serves nothing, not m"
    assert known.boots == [("p1", "boot1")]


async def test_legs_survive_health_cycles(known: Known) -> None:
    """OPS-06: losing and finding an instance leaves the count of its running legs as it is."""
    engine = ScriptedEngine()
    instance = build_instance(engine)
    async with run_watch(instance, on_known=known) as watch:
        with instance.occupied(), instance.occupied():
            for error in (EngineUnavailable("away"), None, EngineBroken("odd"), None):
                engine.error = error
                await watch.check(instance)
                assert instance.view(0.0).running == 2
        assert instance.view(0.0).running == 0


async def test_a_hung_instance_does_not_hold_up_others(known: Known) -> None:
    """OPS-01: while one engine takes connections and never answers, the other goes on being read."""
    hung, well = ScriptedEngine("p1"), ScriptedEngine("p2")
    one, other = build_instance(hung), build_instance(well)
    async with run_watch(one, other, on_known=known, interval_s=0.001):
        hung.hangs = True
        loads = hung.loads
        await hung.asked.until(lambda: hung.loads > loads)
        seen = well.loads
        well.running = 5
        await well.asked.until(lambda: well.loads > seen + 3)
        assert other.load is not None and other.load.running == 5


async def test_a_silent_engine_is_lost_in_time(known: Known) -> None:
    """OPS-01: an engine whose socket is open but says nothing is lost after the time for an answer."""
    async with asyncio.timeout(10.0), _silent_server() as port, FakeEngine() as fake:
        engines = [
            VllmEngine(id_, url, control_timeout_s=0.1)
            for id_, url in (("p1", f"http://127.0.0.1:{port}"), ("p2", fake.url))
        ]
        instances = [
            Instance(InstanceSpec(engine.id, Role.P, "demo", "a", "", max_running=8), engine) for engine in engines
        ]
        async with run_watch(*instances, on_known=known):
            assert [instance.reachable for instance in instances] == [False, True]
            assert "in time" in instances[0].last_error
        for engine in engines:
            await engine.aclose()


async def test_watching_ends(known: Known) -> None:
    """After aclose nothing is asked any more, whether it was started or not."""
    engine = ScriptedEngine()
    async with run_watch(build_instance(engine), on_known=known, interval_s=0.001):
        await engine.asked.until(lambda: engine.loads > 3)
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert not tasks
    await HealthWatch([], 1.0, known).aclose()


@asynccontextmanager
async def _silent_server() -> AsyncGenerator[int, None]:
    writers: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: writers.append(writer), "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()
