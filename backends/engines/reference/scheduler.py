"""Decides which tokens of which sequences the next model step computes. No tensors, no I/O, no clock.

Iteration-level batching: each step takes one token of every sequence that decodes, and fills the rest of the token
budget with chunks of prompts. A sequence is admitted with blocks for all of its tokens, after its cached prefix was
looked up; it may then be sent to fetch KV from the store (``KvFetch``) before it runs. When blocks run out, the
sequence that was admitted last gives its blocks back and waits for another turn; its tokens are kept.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from backends.engines.reference.blocks import BlockPool
from backends.engines.reference.sequence import Sequence, SequencePhase


@dataclass(frozen=True, slots=True)
class StepLimits:
    """Bounds of one step, and when it is worth asking the store."""

    step_tokens: int = 512
    running_sequences: int = 64
    store_chunk_tokens: int = 0
    """Chunk size of the KV store; 0: there is no store to fetch from."""
    min_fetch_tokens: int = 256
    """A gap up to this many tokens is computed at once: that is quicker than a store round trip."""


@dataclass(frozen=True, slots=True)
class Work:
    """Compute ``tokens`` tokens of ``sequence`` from ``start`` on; ``samples``: the last of them yields a token."""

    sequence: Sequence
    start: int
    tokens: int
    samples: bool


@dataclass(frozen=True, slots=True)
class KvFetch:
    """Ask the store for the KV of tokens ``start`` to ``end`` (chunk-aligned end) of a sequence."""

    sequence: Sequence
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What the next step does, and which fetches start before it."""

    work: tuple[Work, ...]
    fetches: tuple[KvFetch, ...]
    preempted: int


class Scheduler:
    """Owns the queues. ``schedule`` decides; ``complete`` is told what happened; both run on one thread."""

    def __init__(self, pool: BlockPool, limits: StepLimits) -> None:
        self._pool = pool
        self._limits = limits
        self._waiting: list[Sequence] = []
        self._running: list[Sequence] = []
        self._fetching: set[Sequence] = set()
        self._arrivals = 0

    @property
    def running(self) -> int:
        """Sequences that hold blocks."""
        return len(self._running) + len(self._fetching)

    @property
    def waiting(self) -> int:
        """Sequences that wait for blocks or for a place in the batch."""
        return len(self._waiting)

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence, by priority and then arrival."""
        self._arrivals += 1
        sequence.arrival = self._arrivals
        self._enqueue(sequence)

    def schedule(self) -> StepPlan:
        """Choose the next step. An empty decision means that nothing can run until something else happens."""
        work: list[Work] = []
        budget = self._limits.step_tokens
        preempted = 0
        # Decoding sequences go first, so that a long prompt never delays their next token by more than one chunk.
        for sequence in sorted(self._running, key=lambda item: item.pending_tokens > 1):
            if sequence.phase is not SequencePhase.RUNNING or budget <= 0:
                continue
            tokens = min(sequence.pending_tokens, budget)
            while not self._grow(sequence, sequence.computed_tokens + tokens):
                victim = self._running[-1]
                self._preempt(victim)
                preempted += 1
                scheduled = next((item for item in work if item.sequence is victim), None)
                if scheduled is not None:
                    work.remove(scheduled)
                    budget += scheduled.tokens
                if victim is sequence:
                    break
            if sequence.phase is SequencePhase.RUNNING:
                work.append(self._work(sequence, tokens))
                budget -= tokens
        fetches: list[KvFetch] = []
        if not preempted:
            budget = self._admit(work, fetches, budget)
        return StepPlan(tuple(work), tuple(fetches), preempted)

    def complete(self, work: Iterable[Work]) -> None:
        """The step is done: the KV of its tokens exists, so the blocks that it filled become findable."""
        for item in work:
            item.sequence.computed_tokens = item.start + item.tokens
            self._commit_full_blocks(item.sequence)

    def fetched(self, fetch: KvFetch, end: int) -> None:
        """The fetch ended: the KV up to token ``end`` is in the sequence's blocks. It runs now, unless it is done."""
        sequence = fetch.sequence
        self._fetching.discard(sequence)
        if sequence.phase is not SequencePhase.FETCHING:
            self._drop_blocks(sequence)
            return
        if end > sequence.computed_tokens:
            sequence.computed_tokens = end
            self._commit_full_blocks(sequence)
        sequence.cached_tokens = min(sequence.computed_tokens, sequence.prompt_tokens)
        sequence.phase = SequencePhase.RUNNING
        self._running.append(sequence)

    def finish(self, sequence: Sequence) -> None:
        """Take a sequence out, whatever its phase; not to be called while a step that computes it is under way.

        The blocks of a sequence that fetches are kept until ``fetched``: the fetch may still write to them.
        """
        phase, sequence.phase = sequence.phase, SequencePhase.DONE
        if phase is SequencePhase.WAITING:
            self._waiting.remove(sequence)
        elif phase is SequencePhase.RUNNING:
            self._running.remove(sequence)
            self._drop_blocks(sequence)

    def _admit(self, work: list[Work], fetches: list[KvFetch], budget: int) -> int:
        while self._waiting and budget > 0 and self.running < self._limits.running_sequences:
            sequence = self._waiting[0]
            if not self._take_blocks(sequence):
                break
            self._waiting.pop(0)
            end = self._fetch_end(sequence)
            if end is not None:
                sequence.phase = SequencePhase.FETCHING
                self._fetching.add(sequence)
                fetches.append(KvFetch(sequence, sequence.computed_tokens, end))
                continue
            if sequence.cached_tokens is None:
                sequence.cached_tokens = min(sequence.computed_tokens, sequence.prompt_tokens)
            sequence.phase = SequencePhase.RUNNING
            self._running.append(sequence)
            tokens = min(sequence.pending_tokens, budget)
            work.append(self._work(sequence, tokens))
            budget -= tokens
        return budget

    def _take_blocks(self, sequence: Sequence) -> bool:
        """Hold the cached prefix and allocate the rest of the blocks; False (and no change) when there are too few."""
        size = self._pool.block_size_tokens
        # The last token is always computed: its logits are what the step is for.
        found = self._pool.find_prefix(sequence.full_hashes(len(sequence.tokens) - 1))
        needed = -(-len(sequence.tokens) // size) - len(found)
        self._pool.hold(found)
        rest = self._pool.allocate(needed, after=found[-1] if found else None)
        if rest is None:
            self._pool.release(found)
            return False
        sequence.blocks = found + rest
        sequence.committed_blocks = len(found)
        sequence.computed_tokens = len(found) * size
        return True

    def _fetch_end(self, sequence: Sequence) -> int | None:
        chunk = self._limits.store_chunk_tokens
        if not chunk or sequence.cached_tokens is not None:
            return None
        end = (len(sequence.tokens) - 1) // chunk * chunk
        gap = end - sequence.computed_tokens
        return end if gap > 0 and sequence.pending_tokens > self._limits.min_fetch_tokens else None

    def _grow(self, sequence: Sequence, tokens: int) -> bool:
        needed = -(-tokens // self._pool.block_size_tokens) - len(sequence.blocks)
        if needed <= 0:
            return True
        more = self._pool.allocate(needed, after=sequence.blocks[-1] if sequence.blocks else None)
        if more is None:
            return False
        sequence.blocks.extend(more)
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        self._drop_blocks(sequence)
        sequence.computed_tokens = 0
        sequence.phase = SequencePhase.WAITING
        self._enqueue(sequence)

    def _enqueue(self, sequence: Sequence) -> None:
        self._waiting.append(sequence)
        self._waiting.sort(key=lambda item: (item.params.priority, item.arrival))

    def _drop_blocks(self, sequence: Sequence) -> None:
        self._pool.release(sequence.blocks)
        sequence.blocks = []
        sequence.committed_blocks = 0

    def _commit_full_blocks(self, sequence: Sequence) -> None:
        size = self._pool.block_size_tokens
        hashes = sequence.full_hashes(sequence.computed_tokens)
        for index in range(sequence.committed_blocks, len(hashes)):
            self._pool.commit(
                sequence.blocks[index],
                hashes[index],
                hashes[index - 1] if index else None,
                sequence.tokens[index * size : (index + 1) * size],
                sequence.params.cache_salt,
            )
        sequence.committed_blocks = len(hashes)

    @staticmethod
    def _work(sequence: Sequence, tokens: int) -> Work:
        return Work(sequence, sequence.computed_tokens, tokens, samples=tokens == sequence.pending_tokens)
