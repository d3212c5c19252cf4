"""Moving parts of a simulation: the event queue, servers that share their speed, block caches."""

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

Callback = Callable[[], None]


@dataclass(slots=True)
class EventQueue:
    """Actions in order of time; those of one moment run in the order in which they were planned."""

    now_s: float = 0.0
    _planned: list[tuple[float, int, Callback]] = field(default_factory=list)
    _count: int = 0

    def plan(self, at_s: float, action: Callback) -> None:
        """Run ``action`` at ``at_s``, or now if that is past."""
        self._count += 1
        heapq.heappush(self._planned, (max(at_s, self.now_s), self._count, action))

    def run(self) -> None:
        """Run everything, and what it plans."""
        while self._planned:
            self.now_s, _, action = heapq.heappop(self._planned)
            action()


@dataclass(slots=True)
class ServerWork:
    """Work in a ``SharedServer``. ``goal`` is the server's progress at which it will be done, once it has a place."""

    work: float
    on_done: Callback
    on_start: Callback | None
    goal: float | None = None
    over: bool = False


@dataclass(slots=True)
class SharedServer:
    """Serves jobs at once, all at ``speed(n)`` units a second while there are n; more than ``most`` jobs wait."""

    timeline: EventQueue
    speed: Callable[[int], float]
    most: int
    served: float = 0.0
    """Units of work done, also for jobs that were taken out."""
    running: int = 0
    _goals: list[tuple[float, int, ServerWork]] = field(default_factory=list)
    _waiting: deque[ServerWork] = field(default_factory=deque)
    _progress: float = 0.0
    """Units that a job in service all along would have got."""
    _since_s: float = 0.0
    _version: int = 0
    _count: int = 0
    _goal_sum: float = 0.0
    _waiting_work: float = 0.0
    _running_work: float = 0.0

    @property
    def waiting(self) -> int:
        """Jobs that wait for a place."""
        return sum(not job.over for job in self._waiting)

    @property
    def backlog(self) -> float:
        """Units of work left in all jobs."""
        self._advance()
        return max(0.0, self._goal_sum - self.running * self._progress) + self._waiting_work

    @property
    def done(self) -> float:
        """Units of work done so far, also of jobs that are still there."""
        self._advance()
        return self.served + self._running_work - max(0.0, self._goal_sum - self.running * self._progress)

    def add(self, work: float, on_done: Callback, on_start: Callback | None = None) -> ServerWork:
        """Add a job of ``work`` units. ``on_start`` runs when it gets a place."""
        self._advance()
        job = ServerWork(work, on_done, on_start)
        self._waiting.append(job)
        self._waiting_work += work
        self._fill()
        return job

    def left(self, job: ServerWork) -> float:
        """Units of work left of a job that is not over."""
        self._advance()
        return job.work if job.goal is None else max(0.0, job.goal - self._progress)

    def remove(self, job: ServerWork) -> None:
        """Take out a job that is not over."""
        self._advance()
        job.over = True
        if job.goal is None:
            self._waiting_work -= job.work
        else:
            self._release(job, job.goal)
            self.served += job.work - max(0.0, job.goal - self._progress)
        self._fill()

    def _advance(self) -> None:
        now_s = self.timeline.now_s
        if self.running:
            self._progress += self.speed(self.running) * (now_s - self._since_s)
        self._since_s = now_s

    def _release(self, job: ServerWork, goal: float) -> None:
        self.running -= 1
        self._goal_sum -= goal
        self._running_work -= job.work

    def _fill(self) -> None:
        while self._waiting and self.running < self.most:
            job = self._waiting.popleft()
            if job.over:
                continue
            self._waiting_work -= job.work
            job.goal = self._progress + job.work
            self._count += 1
            heapq.heappush(self._goals, (job.goal, self._count, job))
            self.running += 1
            self._goal_sum += job.goal
            self._running_work += job.work
            if job.on_start is not None:
                self.timeline.plan(self.timeline.now_s, job.on_start)
        while self._goals and self._goals[0][2].over:
            heapq.heappop(self._goals)
        self._version += 1
        if self._goals:
            version = self._version
            wait_s = (self._goals[0][0] - self._progress) / self.speed(self.running)
            self.timeline.plan(self.timeline.now_s + wait_s, lambda: self._finish(version))

    def _finish(self, version: int) -> None:
        if version != self._version:
            return
        self._advance()
        goal, _, job = heapq.heappop(self._goals)
        job.over = True
        self._release(job, goal)
        self.served += job.work
        self._fill()
        job.on_done()


SLACK = 0.1
"""Share of a full cache that is dropped at once, so that dropping costs little for each block."""


@dataclass(slots=True)
class BlockCache:
    """The blocks that something remembers, least recently used ones dropped first."""

    most: int
    _kept: set[int] = field(default_factory=set)
    _used: list[Sequence[int]] = field(default_factory=list)
    """What was added, in that order; of one prefix the first block counts as used last."""

    def __contains__(self, block: int) -> bool:
        return block in self._kept

    def reach(self, blocks: Sequence[int]) -> int:
        """How many leading blocks are there.

        A block is never dropped before the blocks that follow it, so a binary search finds the first that is missing.
        """
        kept, low, high = self._kept, 0, len(blocks)
        while low < high:
            middle = (low + high) // 2
            if blocks[middle] in kept:
                low = middle + 1
            else:
                high = middle
        return low

    def add(self, blocks: Sequence[int]) -> None:
        """Remember blocks, the first of them longest."""
        self._kept.update(blocks)
        self._used.append(blocks)
        if len(self._kept) > self.most:
            self._drop(self.most - int(self.most * SLACK))

    def _drop(self, room: int) -> None:
        kept: set[int] = set()
        first = len(self._used)
        while first and len(kept) < room:
            first -= 1
            new = [block for block in self._used[first] if block not in kept]
            kept.update(new[: room - len(kept)])
        self._kept, self._used = kept, self._used[first:]
