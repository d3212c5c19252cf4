"""Tests of the adapter that lets a leg reach its first token before it is aborted, over a fake engine."""

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from backends.engines.patient import PatientEngine
from backends.engines.vllm import VllmEngine
from backends.errors import EngineTimeout
from backends.types import LegRequest
from tests.conformance.engine_suite import EngineCase, EngineSuite
from tests.fakes.engine import FakeEngine
from tests.fakes.gates import HoldGate
from tests.fakes.legs import collect, open_leg
from tests.fakes.script import Script

LEG = LegRequest("leg", "demo", tuple(range(20, 40)), 1000)


class TestConformance(EngineSuite):
    """``PatientEngine`` conforms, but for the time that it takes."""

    @pytest.fixture
    async def case(self, fake: FakeEngine) -> AsyncIterator[EngineCase]:
        """The adapter over an adapter over the fake."""
        gone = FakeEngine()
        async with gone:
            unreachable = PatientEngine(VllmEngine("gone", gone.url), 1.0)
        engine = PatientEngine(VllmEngine("e-1", fake.url), 1.0)
        yield EngineCase(engine, unreachable, "demo", tuple(range(20, 40)), fake.max_model_len)
        await engine.aclose()


async def _read(engine: PatientEngine) -> None:
    await collect(engine, LEG)


async def test_leg_without_a_token_is_let_go_until_its_first(fake: FakeEngine) -> None:
    """The caller does not wait; the engine sees the abort only after it has sent a token."""
    first, second = HoldGate(), HoldGate()
    fake.script = Script(holds={0: first, 1: second})
    engine = PatientEngine(VllmEngine("e-1", fake.url), 60.0)
    reading = asyncio.create_task(_read(engine))
    await first.arrivals()
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    assert fake.running == 1
    first.open()
    await fake.idle()
    assert fake.calls[0].state == "aborted" and len(fake.calls[0].ids) == 1
    await engine.aclose()


async def test_leg_with_a_token_is_aborted_at_once(fake: FakeEngine) -> None:
    """After the first token the connection is closed when ``aclose`` returns."""
    gate = HoldGate()
    fake.script = Script(holds={1: gate})
    engine = PatientEngine(VllmEngine("e-1", fake.url), 60.0)
    stream = open_leg(engine, LEG)
    await anext(stream)
    await stream.aclose()
    await fake.idle()
    assert fake.calls[0].state == "aborted"
    await engine.aclose()


async def test_patience_ends(fake: FakeEngine) -> None:
    """An engine that gives no token in time sees the abort all the same."""
    gate = HoldGate()
    fake.script = Script(holds={0: gate})
    engine = PatientEngine(VllmEngine("e-1", fake.url), 0.01)
    reading = asyncio.create_task(_read(engine))
    await gate.arrivals()
    reading.cancel()
    await fake.idle()
    assert fake.calls[0].state == "aborted"
    await engine.aclose()


async def test_silence_is_told_in_time_but_not_aborted(fake: FakeEngine) -> None:
    """SPL-46: the caller goes on elsewhere when the first token's time is over; the engine sees the abort later."""
    first, second = HoldGate(), HoldGate()
    fake.script = Script(holds={0: first, 1: second})
    engine = PatientEngine(VllmEngine("e-1", fake.url), 60.0)
    with pytest.raises(EngineTimeout):
        await collect(engine, msgspec.structs.replace(LEG, first_token_timeout_s=0.05))
    assert fake.running == 1
    first.open()
    await fake.idle()
    assert fake.calls[0].state == "aborted" and len(fake.calls[0].ids) == 1
    await engine.aclose()


async def test_closing_the_adapter_waits_for_what_was_let_go(fake: FakeEngine) -> None:
    """A gateway that ends, or an instance that leaves it, does not abort a leg before its first token either."""
    first, second = HoldGate(), HoldGate()
    fake.script = Script(holds={0: first, 1: second})
    engine = PatientEngine(VllmEngine("e-1", fake.url), 60.0)
    reading = asyncio.create_task(_read(engine))
    await first.arrivals()
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    closing = asyncio.create_task(engine.aclose())
    done, _ = await asyncio.wait([closing], timeout=0.05)
    assert not done and fake.running == 1
    first.open()
    async with asyncio.timeout(5):
        await closing
    await fake.idle()
    assert fake.calls[0].state == "aborted" and len(fake.calls[0].ids) == 1
