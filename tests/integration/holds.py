"""Legs that wait where a test wants them: the answer stays in a phase until the test lets it go on."""

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from typing import Literal

from backends.base import Engine, Take
from backends.types import Capabilities, EngineLoad, LegChunk, LegRequest
from tests.fakes.gates import HoldGate
from tests.fakes.legs import open_leg

Kind = Literal["prefill", "relay", "extend", "final", "warm"]
HELD_AT_MOST_S = 60.0
LEG = re.compile(r"(?P<answer>.+)-(?P<kind>[a-z]+)(-\d+)?")
"""Name of a leg."""


@dataclass(slots=True)
class Hold:
    """Where legs of a kind wait at ``gate``: after so many tokens, or when they have so many left."""

    kind: Kind
    after: int = 0
    left: int | None = None
    until_main: bool = False
    """Only in answers to which no final leg has brought anything."""
    unasked: bool = False
    """Before the engine is asked."""
    gate: HoldGate = field(default_factory=HoldGate)


class Holds:
    """The holds that are in force for the engines of a gateway."""

    def __init__(self) -> None:
        self._holds: list[Hold] = []
        self._answers_of_main: set[str] = set()

    @contextmanager
    def hold(self, hold: Hold) -> Iterator[HoldGate]:
        """Hold legs until the gate lets them go, the block ends, or they have waited a minute.

        A leg that has brought nothing yet is held once the engine is asked: it arrives at the gate and runs.
        """
        self._holds.append(hold)
        try:
            yield hold.gate
        finally:
            self._holds.remove(hold)
            hold.gate.open()

    def at(self, leg: LegRequest, received: int, *, unasked: bool = False) -> list[HoldGate]:
        """Gates that a leg has to pass after ``received`` tokens, or before its engine is asked."""
        named = LEG.fullmatch(leg.request_id)
        if named is None:
            return []
        answer, kind = named["answer"], named["kind"]
        if kind == "final" and received:
            self._answers_of_main.add(answer)
        left = (leg.max_tokens or 0) - received
        return [
            hold.gate
            for hold in self._holds
            if hold.kind == kind
            and hold.unasked == unasked
            and received >= hold.after
            and (hold.left is None or left <= hold.left)
            and not (hold.until_main and answer in self._answers_of_main)
        ]


class HeldEngine:
    """``Engine`` around another one, whose legs can be held."""

    def __init__(self, engine: Engine, holds: Holds) -> None:
        self._engine = engine
        self._holds = holds

    @property
    def id(self) -> str:
        """Name of the instance."""
        return self._engine.id

    async def generate(self, leg: LegRequest, take: Take) -> None:
        """See ``Engine.generate``."""
        received = 0
        await _pass(self._holds.at(leg, received, unasked=True))
        async with aclosing(open_leg(self._engine, leg)) as stream:
            while (chunk := await self._read(stream, leg, received)) is not None:
                received += len(chunk.token_ids)
                if (room := take(chunk)) is not None:
                    await room.wait()

    async def probe(self) -> Capabilities:
        """See ``Engine.probe``."""
        return await self._engine.probe()

    async def load(self) -> EngineLoad:
        """See ``Engine.load``."""
        return await self._engine.load()

    async def aclose(self) -> None:
        """See ``Engine.aclose``."""
        await self._engine.aclose()

    async def _read(self, stream: AsyncGenerator[LegChunk, None], leg: LegRequest, received: int) -> LegChunk | None:
        gates = self._holds.at(leg, received)
        if not gates:
            return await anext(stream, None)
        reading = asyncio.create_task(_read_next(stream))
        try:
            await _pass(gates)
            return await reading
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)


async def _pass(gates: Sequence[HoldGate]) -> None:
    with contextlib.suppress(TimeoutError):  # what follows from a wait in vain is for the test to say
        async with asyncio.timeout(HELD_AT_MOST_S):
            for gate in gates:
                await gate.hold()


async def _read_next(stream: AsyncGenerator[LegChunk, None]) -> LegChunk | None:
    return await anext(stream, None)
