"""An engine in this process, behind a real socket, with a model that the test can hold still."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from backends.engines.reference.blocks import BlockPool
from backends.engines.reference.core import EngineRole, FetchingStore, ReferenceEngine
from backends.engines.reference.events import EventPublisher
from backends.engines.reference.metrics import EngineMetrics
from backends.engines.reference.sampler import Sampled
from backends.engines.reference.scheduler import Scheduler, StepLimits, Work
from backends.engines.reference.server import ReferenceServer, Served
from backends.engines.reference.text import Text
from tests.fakes.server import AppServer

BLOCKS, BLOCK, VOCAB, EOS = 64, 4, 320, 0


@dataclass
class ScriptedModel:
    """Each token is the one before plus one. While ``gate`` is unset, steps wait; ``steps`` is released per step."""

    gate: threading.Event = field(default_factory=threading.Event)
    started: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    batches: list[list[int]] = field(default_factory=list)
    error: Exception | None = None

    def __post_init__(self) -> None:
        self.gate.set()

    def step(self, work: Sequence[Work]) -> list[Sampled]:
        """One step."""
        self.batches.append([item.tokens for item in work])
        self.started.release()
        if not self.gate.wait(10):
            raise TimeoutError("the test never opened the gate")
        if self.error is not None:
            raise self.error
        return [Sampled((item.sequence.tokens[-1] + 1) % VOCAB, -0.5, ((7, -0.25),)) for item in work if item.samples]

    async def wait_step(self) -> None:
        """Return when one more step has started."""
        async with asyncio.timeout(10):
            await asyncio.to_thread(self.started.acquire)


@dataclass
class MemoryStore:
    """Remembers which chunks it was given, no KV. An unset ``gate`` holds fetches, an unset ``write_gate`` writes."""

    chunk_tokens: int = 8
    stored: dict[tuple[str | None, tuple[int, ...]], bool] = field(default_factory=dict)
    gate: threading.Event = field(default_factory=threading.Event)
    write_gate: threading.Event = field(default_factory=threading.Event)
    fetching: threading.Event = field(default_factory=threading.Event)
    writes: list[tuple[int, int]] = field(default_factory=list)
    failing: Exception | None = None
    fetch_error: Exception | None = None
    cancelled: Callable[[], bool] = lambda: False

    def __post_init__(self) -> None:
        self.gate.set()
        self.write_gate.set()

    async def wait_cancelled(self) -> None:
        """Return when the fetch under way has been told to stop."""
        async with asyncio.timeout(10):
            while not self.cancelled():
                await asyncio.to_thread(lambda: None)

    def put(self, tokens: Sequence[int], cache_salt: str | None = None) -> None:
        """Pretend that the full chunks of ``tokens`` are stored."""
        for end in range(self.chunk_tokens, len(tokens) + 1, self.chunk_tokens):
            self.stored[(cache_salt, tuple(tokens[:end]))] = True

    def present(self, tokens: Sequence[int], cache_salt: str | None) -> int:
        """Prefix that is stored."""
        end = 0
        while self.stored.get((cache_salt, tuple(tokens[: end + self.chunk_tokens]))) and end < len(tokens):
            end += self.chunk_tokens
        return end

    def fetch(
        self,
        tokens: Sequence[int],
        cache_salt: str | None,
        start: int,
        blocks: Sequence[int],
        cancelled: Callable[[], bool],
    ) -> int:
        """Bring what is stored."""
        self.cancelled = cancelled
        self.fetching.set()
        if self.fetch_error is not None:
            raise self.fetch_error
        if not self.gate.wait(10):
            raise TimeoutError("the test never opened the gate")
        return start if cancelled() else max(start, self.present(tokens, cache_salt))

    def store(self, tokens: Sequence[int], cache_salt: str | None, start: int, blocks: Sequence[int]) -> None:
        """Remember the chunks."""
        if not self.write_gate.wait(10):
            raise TimeoutError("the test never opened the gate")
        if self.failing is not None:
            raise self.failing
        self.writes.append((start, len(tokens)))
        self.put(tokens, cache_salt)


@dataclass
class Rig:
    """A running engine."""

    url: str
    engine: ReferenceEngine
    pool: BlockPool
    scheduler: Scheduler

    async def until_idle(self) -> None:
        """Return when no request runs or waits and all blocks are back."""
        async with asyncio.timeout(10):
            while self.scheduler.running or self.scheduler.waiting or self.pool.usage:
                await asyncio.to_thread(lambda: None)


@asynccontextmanager
async def run_engine(
    model: ScriptedModel,
    *,
    role: EngineRole = "main",
    store: FetchingStore | None = None,
    directory: Path | None = None,
    publisher: EventPublisher | None = None,
    step_tokens: int = 16,
    context_tokens: int = 200,
    stored_timeout_s: float = 5.0,
) -> AsyncGenerator[Rig, None]:
    """Serve over a real socket until the block ends."""
    pool = BlockPool(BLOCKS, BLOCK)
    limits = StepLimits(step_tokens, 8, store.chunk_tokens if store else 0, min_fetch_tokens=0)
    scheduler = Scheduler(pool, limits)
    metrics = EngineMetrics("tiny", blocks=BLOCKS, block_size_tokens=BLOCK, dtype="float32")
    engine = ReferenceEngine(
        model,
        pool,
        scheduler,
        role=role,
        context_tokens=context_tokens,
        metrics=metrics,
        publisher=publisher,
        store=store,
    )
    source = publisher.source if publisher else None
    served = Served("tiny", context_tokens, VOCAB, frozenset({EOS}), 1, stored_timeout_s, source)
    text = await asyncio.to_thread(Text, directory or Path())
    server = AppServer(ReferenceServer(engine, text, metrics, served).app())
    engine.start()
    try:
        async with server:
            yield Rig(server.url, engine, pool, scheduler)
    finally:
        model.gate.set()
        await engine.aclose()
