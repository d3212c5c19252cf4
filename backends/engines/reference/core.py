"""The engine's loop: schedule, run one model step on its own thread, hand out the tokens; KV moves beside it.

Everything but the model step and the store's calls happens on the event loop's thread, so queues, blocks and
sequences need no locks. While a step runs, its sequences keep their blocks; an abort takes effect after it. Blocks
that a store call reads or writes stay held until that call has ended.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, Protocol, TypeVar

from backends.engines.reference.blocks import BlockPool
from backends.engines.reference.events import EventPublisher
from backends.engines.reference.generation import Generation, Output, find_finish
from backends.engines.reference.kv_store import Store, Writeback
from backends.engines.reference.metrics import EngineMetrics
from backends.engines.reference.model import ModelRunner
from backends.engines.reference.sampler import Sampled, Sampler
from backends.engines.reference.scheduler import KvFetch, Scheduler, Work
from backends.engines.reference.sequence import Params, SequencePhase
from backends.engines.reference.sequence import Sequence as TokenSequence

logger = logging.getLogger(__name__)

EngineRole = Literal["prefill", "relay", "main"]
MAX_ANSWER_WRITES = 8
"""Answers that may wait to be stored; more are not stored at all."""

T = TypeVar("T")


class Model(Protocol):
    """Computes one step; called from one thread."""

    def step(self, work: Sequence[Work]) -> list[Sampled]:
        """Compute the KV of all tokens of ``work``; one token for each item that samples, in order."""
        ...


class FetchingStore(Store, Protocol):
    """A store that KV can be read from, too."""

    def fetch(
        self,
        tokens: Sequence[int],
        cache_salt: str | None,
        start: int,
        blocks: Sequence[int],
        cancelled: Callable[[], bool],
    ) -> int:
        """Bring KV of ``tokens[start:]`` into ``blocks``; the end of what came."""
        ...


class ReferenceEngine:
    """Serves generations until ``aclose``. ``store`` None: no KV leaves or enters this process."""

    def __init__(
        self,
        model: Model,
        pool: BlockPool,
        scheduler: Scheduler,
        *,
        role: EngineRole,
        context_tokens: int,
        metrics: EngineMetrics,
        publisher: EventPublisher | None = None,
        store: FetchingStore | None = None,
    ) -> None:
        self._model = model
        self._pool = pool
        self._scheduler = scheduler
        self._role = role
        self._context_tokens = context_tokens
        self._metrics = metrics
        self._publisher = publisher
        self._store = store
        self._generations: dict[TokenSequence, Generation] = {}
        self._writebacks: dict[TokenSequence, Writeback] = {}
        self._stepping: frozenset[TokenSequence] = frozenset()
        self._wake = asyncio.Event()
        self._answer_writes = 0
        self._model_thread = ThreadPoolExecutor(1, "model")
        self._fetch_thread = ThreadPoolExecutor(1, "kv-fetch")
        self._store_thread = ThreadPoolExecutor(1, "kv-store")
        self._task: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        """Whether the loop runs."""
        return self._task is not None and not self._task.done()

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(_log_death)

    async def aclose(self) -> None:
        """Stop the loop; generations under way end with EngineDead."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        for thread in (self._model_thread, self._fetch_thread, self._store_thread):
            thread.shutdown(wait=False, cancel_futures=True)

    def submit(self, request_id: str, prompt: list[int], params: Params) -> Generation:
        """Queue a checked request: prompt and one more token fit the context, ids are in the vocabulary."""
        sequence = TokenSequence(request_id, prompt, params, self._pool.block_size_tokens)
        generation = Generation(sequence, self._abort)
        self._generations[sequence] = generation
        self._scheduler.add(sequence)
        self._wake.set()
        return generation

    def reset_prefix_cache(self) -> None:
        """Forget every cached prefix; running requests are not touched."""
        self._pool.clear()
        self._publish()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                decision = self._scheduler.schedule()
                for fetch in decision.fetches:
                    self._start_fetch(fetch)
                self._publish()
                if not decision.work:
                    if not decision.preempted:
                        self._wake.clear()
                        await self._wake.wait()
                    continue
                self._count_admitted(decision.work)
                self._stepping = frozenset(item.sequence for item in decision.work)
                started_s = time.perf_counter()
                sampled = await loop.run_in_executor(self._model_thread, self._model.step, decision.work)
                self._stepping = frozenset()
                self._metrics.count_step(time.perf_counter() - started_s, len(sampled), decision.preempted)
                self._apply(decision.work, sampled)
        finally:
            for generation in list(self._generations.values()):
                generation.push(None)

    def _apply(self, work: Sequence[Work], sampled: Sequence[Sampled]) -> None:
        self._scheduler.complete(work)
        tokens = iter(sampled)
        for item in work:
            sequence = item.sequence
            token = next(tokens) if item.samples else None
            if sequence.aborted:
                self._end(sequence, "abort")
                continue
            if self._role == "prefill":
                self._write_prompt(sequence)
            if token is not None:
                self._emit(sequence, token)
        self._publish()

    def _emit(self, sequence: TokenSequence, token: Sampled) -> None:
        sequence.tokens.append(token.token_id)
        finish, stop = find_finish(sequence, self._context_tokens)
        generation = self._generations[sequence]
        if sequence.output_tokens == 1:
            self._metrics.count_first_token(time.monotonic() - generation.arrived_s)
        generation.push(Output(token, finish, stop))
        if finish is not None:
            if self._role == "main":
                self._write_answer(sequence)
            self._end(sequence, finish)

    def _end(self, sequence: TokenSequence, reason: str) -> None:
        self._generations.pop(sequence).ended = True
        self._writebacks.pop(sequence, None)
        self._scheduler.finish(sequence)
        self._metrics.count_end(reason)

    def _abort(self, generation: Generation) -> None:
        sequence = generation.sequence
        if generation.ended or sequence.aborted:
            return
        sequence.aborted = True
        generation.push(None)
        if sequence not in self._stepping:
            self._end(sequence, "abort")
        self._wake.set()

    def _start_fetch(self, fetch: KvFetch) -> None:
        sequence = fetch.sequence
        if self._store is None:
            raise RuntimeError("the scheduler fetches, but there is no store")
        tokens = sequence.tokens[: fetch.end]
        call = (tokens, sequence.params.cache_salt, fetch.start, list(sequence.blocks), lambda: sequence.aborted)
        store = self._store

        def finish(end: int | None) -> None:
            got = fetch.start if end is None else end
            if end is None:
                self._metrics.count_store_failure()
            generation = self._generations.get(sequence)
            if generation is not None:
                generation.store_hit_tokens = got - fetch.start
            self._metrics.count_fetch(fetch.end - fetch.start, got - fetch.start)
            self._scheduler.fetched(fetch, got)
            self._wake.set()

        self._off_loop(self._fetch_thread, lambda: store.fetch(*call), finish)

    def _write_prompt(self, sequence: TokenSequence) -> None:
        """Prefill role: put the chunks that the last step completed into the store, while the next step runs."""
        if self._store is None or sequence.output_tokens:
            return
        computed = min(sequence.computed_tokens, sequence.prompt_tokens)
        writeback = self._writebacks.get(sequence)
        if writeback is None:
            prompt = sequence.tokens[: sequence.prompt_tokens]
            writeback = self._writebacks[sequence] = Writeback(self._store, prompt, sequence.params.cache_salt)
        written = asyncio.get_running_loop().create_future()
        self._generations[sequence].add_write(written)
        self._write(writeback, sequence, computed, written.set_result)

    def _write_answer(self, sequence: TokenSequence) -> None:
        """Main role: keep the answer's KV in this region's store for the next turn, unless the store is busy."""
        if self._store is None or self._answer_writes >= MAX_ANSWER_WRITES:
            return
        self._answer_writes += 1

        def written(_: bool) -> None:
            self._answer_writes -= 1

        tokens = sequence.tokens[: sequence.computed_tokens]
        writeback = Writeback(self._store, tokens, sequence.params.cache_salt)
        self._write(writeback, sequence, len(tokens), written)

    def _write(self, writeback: Writeback, sequence: TokenSequence, end: int, written: Callable[[bool], None]) -> None:
        tokens = sequence.tokens[:end]
        held = sequence.blocks[: -(-end // self._pool.block_size_tokens)]
        self._pool.hold(held)

        def finish(stored: bool | None) -> None:
            self._pool.release(held)
            if not stored:
                self._metrics.count_store_failure()
            written(bool(stored))
            self._wake.set()

        self._off_loop(self._store_thread, lambda: writeback.put(tokens, held), finish)

    def _off_loop(self, thread: ThreadPoolExecutor, call: Callable[[], T], finish: Callable[[T | None], None]) -> None:
        """Run ``call`` on ``thread``, then ``finish`` with its result here; with None when it raised."""
        future = asyncio.get_running_loop().run_in_executor(thread, call)

        def done(ended: asyncio.Future[T]) -> None:
            error = None if ended.cancelled() else ended.exception()
            if error is not None:
                logger.error("a KV store call raised %s", type(error).__name__, exc_info=error)
            finish(None if ended.cancelled() or error is not None else ended.result())

        future.add_done_callback(done)

    def _count_admitted(self, work: Sequence[Work]) -> None:
        for item in work:
            generation = self._generations[item.sequence]
            if not generation.counted and item.sequence.phase is SequencePhase.RUNNING:
                generation.counted = True
                cached = item.sequence.cached_tokens or 0
                local = cached - generation.store_hit_tokens
                self._metrics.count_prompt(item.sequence.prompt_tokens, local, generation.store_hit_tokens)

    def _publish(self) -> None:
        self._metrics.set_load(self._scheduler.running, self._scheduler.waiting, self._pool.usage)
        events = self._pool.take_events()
        if self._publisher is not None:
            self._publisher.publish(events)


def _log_death(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.critical("the engine's loop has stopped", exc_info=error)


class Stepper:
    """What the engine's model thread calls."""

    def __init__(self, runner: ModelRunner, sampler: Sampler, min_step_s: float = 0.0) -> None:
        self._runner = runner
        self._sampler = sampler
        self._min_step_s = min_step_s

    def step(self, work: Sequence[Work]) -> list[Sampled]:
        """Compute the KV of all tokens of ``work``; one token for each item that samples, in order."""
        end_s = time.monotonic() + self._min_step_s
        logits = self._runner.forward(work)
        sampled = self._sampler.sample(logits, [item.sequence for item in work if item.samples])
        time.sleep(max(0.0, end_s - time.monotonic()))
        return sampled
