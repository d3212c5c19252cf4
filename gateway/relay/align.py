"""Brings MD's cache into line with answers that ended at RLD, after the client has its answer."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from backends.errors import BackendError
from backends.types import LegChunk
from gateway.fleet.pools import Instance
from gateway.relay.legs import build_align_leg
from gateway.relay.types import GenerationRequest
from policies.rules import RelayRules

log = logging.getLogger(__name__)

MOST_JOBS = 256
DropReason = Literal["too_many", "no_instance", "transfer", "leg"]
"""Why MD lacks what an answer made: its job was one too many, nobody could take it, or one of its two steps failed."""


@dataclass(frozen=True, slots=True)
class AlignJob:
    """One answer's rest: let ``transfer`` (None: the KV is there) complete, then extend on ``main`` with the answer.

    ``rank``: the one of ``main`` that has the KV, see ``LegRequest.data_parallel_rank``.
    ``note_taken`` is told how many prompt tokens ``main`` took from a cache; None: it does not say.
    """

    request: GenerationRequest
    log: tuple[int, ...]
    main: Instance
    rules: RelayRules
    transfer: asyncio.Task[bool] | None
    note_taken: Callable[[int | None], object]
    rank: int | None = None


def _count_nothing(reason: DropReason) -> None:
    """Nobody wants to know."""


class Aligner:
    """Owns the jobs; beyond ``MOST_JOBS`` the next answers go without, and their transfers stop.

    ``drop`` is told of each answer that goes without.
    """

    def __init__(self, drop: Callable[[DropReason], None] = _count_nothing) -> None:
        self.drop = drop
        self._jobs: set[asyncio.Task[None]] = set()

    @property
    def running(self) -> int:
        """Jobs that are not done."""
        return len(self._jobs)

    def adopt(self, job: AlignJob) -> None:
        """Take over the transfer of a finished answer and do the rest in the background."""
        if len(self._jobs) >= MOST_JOBS:
            self.drop("too_many")
            if job.transfer is not None:
                job.transfer.cancel()
            return
        task = asyncio.create_task(self._align(job))
        self._jobs.add(task)
        task.add_done_callback(self._jobs.discard)

    async def drained(self) -> None:
        """Wait until no job runs."""
        while self._jobs:
            await asyncio.wait(self._jobs)

    async def aclose(self) -> None:
        """Stop all jobs and their transfers."""
        jobs = list(self._jobs)
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)

    async def _align(self, job: AlignJob) -> None:
        if job.transfer is not None and not await job.transfer:
            self.drop("transfer")
            return
        leg = job.main.fit(build_align_leg(job.request, job.log, job.rules, job.rank))
        cached_tokens = None

        def take(chunk: LegChunk) -> None:
            nonlocal cached_tokens
            if chunk.usage is not None and chunk.usage.cached_tokens is not None:
                cached_tokens = chunk.usage.cached_tokens

        try:
            with job.main.occupied(job.rank):
                await job.main.engine.generate(leg, take)
            job.note_taken(cached_tokens)
        except BackendError as error:
            self.drop("leg")
            log.warning("aligning %s on %s failed: %s", job.request.request_id, job.main.spec.id, error)
