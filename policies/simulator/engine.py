"""One engine instance at work: steps that hold chunks of prompts and one token of each running answer.

While prompts wait, every step is an event: chunks are packed up to the token budget, and the decodes that share the
step wait for it. Without prompts all decodes go on at one speed, so only their ends are events.
"""

import heapq
from collections import deque
from dataclasses import dataclass, field

from policies.simulator.engine_model import EngineModel
from policies.simulator.parts import Callback, EventQueue


def _ignore() -> None:
    """Nobody wants to know."""


@dataclass(slots=True, eq=False, repr=False)
class Job:
    """A request in an engine: ``new_tokens`` of its context are computed, then ``decode_tokens`` are made."""

    context_tokens: int
    """The prompt's, with what is computed of it."""
    new_tokens: int
    decode_tokens: int
    on_done: Callback
    on_start: Callback = _ignore
    """It has a place."""
    on_prefilled: Callback = _ignore
    left_tokens: int = field(init=False)
    goal: float | None = None
    """The engine's progress at its last token, while it decodes."""
    placed: bool = False
    over: bool = False

    def __post_init__(self) -> None:
        self.left_tokens = self.new_tokens

    @property
    def kv_tokens(self) -> int:
        """Memory that it takes."""
        return self.context_tokens + self.decode_tokens


@dataclass(slots=True)
class SimulatedEngine:
    """Jobs come in order of arrival; one that finds no place or no memory holds back those behind it."""

    timeline: EventQueue
    model: EngineModel
    running: int = 0
    kv_used: int = 0
    _waiting: deque[Job] = field(default_factory=deque)
    _prompts: deque[Job] = field(default_factory=deque)
    _decodes: list[tuple[float, int, Job]] = field(default_factory=list)
    _joining: list[Job] = field(default_factory=list)
    _decoding: int = 0
    _progress: float = 0.0
    """Tokens that an answer that ran all along would have."""
    _context: float = 0.0
    """Sum of contexts of all decodes, less the progress that each started at."""
    _since_s: float = 0.0
    _stepping: bool = False
    _settling: bool = False
    """Jobs are being told what has become of them; what they submit meanwhile is begun afterwards."""
    _version: int = 0
    _count: int = 0

    @property
    def waiting(self) -> int:
        """Jobs without a place."""
        return len(self._waiting)

    @property
    def itl_s(self) -> float:
        """Seconds between two tokens of one answer, now or if there were one."""
        return self._decode_step_s() / self.model.tokens_per_step

    def submit(self, job: Job) -> None:
        """Take a job."""
        self._advance()
        self._waiting.append(job)
        self._admit()
        self._go()

    def stop(self, job: Job) -> float:
        """Take out a job that is not over; how many tokens it has made."""
        self._advance()
        made, job.over = self.made(job), True
        if not job.placed:
            return 0.0
        if job.goal is not None:
            self._leave(job, job.goal)
        else:
            (self._joining if job in self._joining else self._prompts).remove(job)
        self._free(job)
        self._go()
        return made

    def made(self, job: Job) -> float:
        """Return how many tokens a job has made so far."""
        self._advance()
        return 0.0 if job.goal is None else min(float(job.decode_tokens), job.decode_tokens - job.goal + self._progress)

    def _decode_step_s(self) -> float:
        context = self._context + self._decoding * self._progress
        return self.model.step_time_s(0, 0, 0, max(1, self._decoding), context)

    def _advance(self) -> None:
        if self._stepping:
            return
        now_s = self.timeline.now_s
        if self._decoding and now_s > self._since_s:
            self._progress += (now_s - self._since_s) / self._decode_step_s() * self.model.tokens_per_step
        self._since_s = now_s

    def _admit(self) -> None:
        model = self.model
        while self._waiting and self.running < model.max_running:
            job = self._waiting[0]
            if job.over:
                self._waiting.popleft()
                continue
            if self.running and self.kv_used + job.kv_tokens > model.kv_tokens:
                return
            self._waiting.popleft()
            job.placed = True
            self.running += 1
            self.kv_used += job.kv_tokens
            job.on_start()
            if job.new_tokens:
                self._prompts.append(job)
            else:
                job.on_prefilled()
                self._start_decode(job)

    def _free(self, job: Job) -> None:
        self.running -= 1
        self.kv_used -= job.kv_tokens
        self._admit()

    def _start_decode(self, job: Job) -> None:
        if job.decode_tokens <= 0:
            job.over = True
            self._free(job)
            job.on_done()
        elif self._stepping:
            self._joining.append(job)
        else:
            self._enter(job)

    def _enter(self, job: Job) -> None:
        self._count += 1
        job.goal = self._progress + job.decode_tokens
        self._decoding += 1
        self._context += job.context_tokens - self._progress
        heapq.heappush(self._decodes, (job.goal, self._count, job))

    def _leave(self, job: Job, goal: float) -> None:
        self._decoding -= 1
        self._context -= job.context_tokens - (goal - job.decode_tokens)
        if not self._decoding:
            self._context = 0.0

    def _go(self) -> None:
        """Begin the next step, or plan when the next answer will be over."""
        if self._stepping or self._settling:
            return
        if self._prompts:
            self._begin_step()
            return
        while self._decodes and self._decodes[0][2].over:
            heapq.heappop(self._decodes)
        self._version += 1
        if self._decodes:
            version, left = self._version, self._decodes[0][0] - self._progress
            wait_s = left / self.model.tokens_per_step * self._decode_step_s()
            self.timeline.plan(self.timeline.now_s + max(0.0, wait_s), lambda: self._end_decode(version))

    def _end_decode(self, version: int) -> None:
        if version != self._version or self._stepping:
            return
        self._advance()
        self._progress = max(self._progress, self._decodes[0][0])
        self._settle([])

    def _settle(self, prefilled: list[Job]) -> None:
        """Let answers end that are over, and those begin whose prompt is done."""
        ended = []
        while self._decodes and (self._decodes[0][2].over or self._decodes[0][0] <= self._progress):
            goal, _, job = heapq.heappop(self._decodes)
            if not job.over:
                job.over = True
                self._leave(job, goal)
                ended.append(job)
        self._settling = True
        for job in ended:
            self._free(job)
            job.on_done()
        for job in prefilled:
            job.on_prefilled()
            self._start_decode(job)
        self._settling = False
        self._go()

    def _begin_step(self) -> None:
        budget = self.model.budget_tokens
        parts: list[tuple[Job, int]] = []
        pairs = read = 0.0
        for job in self._prompts:
            chunk = min(job.left_tokens, budget)
            before = job.context_tokens - job.left_tokens
            parts.append((job, chunk))
            pairs += chunk * (before + chunk / 2)
            read += before
            budget -= chunk
            if not budget:
                break
        context = self._context + self._decoding * self._progress
        seconds = self.model.step_time_s(self.model.budget_tokens - budget, pairs, read, self._decoding, context)
        self._stepping = True
        self._version += 1
        self.timeline.plan(self.timeline.now_s + seconds, lambda: self._end_step(parts))

    def _end_step(self, parts: list[tuple[Job, int]]) -> None:
        self._stepping = False
        self._since_s = self.timeline.now_s
        if self._decoding:
            self._progress += self.model.tokens_per_step
        joining, self._joining = self._joining, []
        for job in joining:
            self._enter(job)
        prefilled = []
        for job, chunk in parts:
            if not job.over:
                job.left_tokens -= chunk
                if not job.left_tokens:
                    self._prompts.remove(job)
                    prefilled.append(job)
        self._settle(prefilled)
