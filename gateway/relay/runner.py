"""Runs the legs of one answer on engine instances, and tells what comes of them."""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Literal

from backends.errors import BackendError, EngineRejected, EngineTimeout
from backends.types import EngineFinish, LegRequest, LegUsage
from gateway.fleet.pools import Instance, Pools
from gateway.relay.answer_plan import AnswerPlan
from gateway.relay.failover import Failover
from gateway.relay.leg_pace import LegPace
from gateway.relay.legs import ROLE_OF, build_leg
from gateway.relay.mailbox import Mailbox
from gateway.relay.nixl_lease import NixlLease
from gateway.relay.record import Record
from gateway.relay.splice_events import LegEnded, LegFailed, LegId, LegKind, LegTokens, LegUnplaced, StartLeg
from gateway.relay.timeouts import FirstTokenTimeouts
from policies.types import Role

log = logging.getLogger(__name__)

DRAIN_S = 1.0
"""How long a leg that said its last word may take to end its stream, so that its connection can be used again."""

FINISHES: dict[EngineFinish, Literal["stop", "length"]] = {"stop": "stop", "length": "length"}


@dataclass(slots=True)
class _Running:
    start: StartLeg
    instance: Instance
    task: asyncio.Task[None]
    said_last: bool = False


class LegRunner:
    """The engine calls of one answer; what they bring is posted to the answer's mailbox.

    ``makers``: the instance of each leg that was started. ``last_failure``: of the leg that failed last.
    """

    def __init__(self, course: AnswerPlan, cast: Failover, pools: Pools, record: Record, mailbox: Mailbox) -> None:
        self._course = course
        self._cast = cast
        self._pools = pools
        self._record = record
        self._mailbox = mailbox
        self._loan = NixlLease(course.lease_s, pools.clock)
        self._patience = FirstTokenTimeouts(course.transfer, course.rtt_s, course.rules)
        self._running: dict[LegId, _Running] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._draining: set[asyncio.Task[None]] = set()
        self.makers: dict[LegId, Instance] = {}
        self.last_failure: BackendError | None = None
        self.prefill_usage: LegUsage | None = None

    def start(self, start: StartLeg, emitted: Sequence[int]) -> None:
        """Start a leg; ``emitted``: the answer's ids so far. Without an instance for it NoInstance is posted."""
        instance = self._cast.pick(ROLE_OF[start.kind])
        if instance is None:
            self._record.note("no_instance", role=ROLE_OF[start.kind].value)
            self._mailbox.post(LegUnplaced(start.leg))
            return
        wait_s = self._patience.wait_s(start, instance, self._pools.clock())
        request = build_leg(self._course.request, start, emitted, self._course.rules, wait_s)
        request = instance.fit(self._loan.apply(request, start))
        self.makers[start.leg] = instance
        self._record.leg_started(start, instance.spec.id, instance.spec.cost_per_s)
        task = asyncio.create_task(self._pump(start, instance, request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda done: self._on_pumped(start.leg, done))
        self._running[start.leg] = _Running(start, instance, task)

    def close(self, leg: LegId) -> None:
        """Abort a leg; one that said its last word may end by itself."""
        running = self._running.pop(leg, None)
        if running is None:
            return
        if running.said_last:
            self._draining.add(running.task)
            running.task.add_done_callback(self._draining.discard)
        else:
            running.task.cancel()
            self._record.leg_ended(running.start, running.instance.spec.id, "closed")

    def is_prefill(self, leg: LegId) -> bool:
        """Whether this is a P leg that was not closed."""
        running = self._running.get(leg)
        return running is not None and running.start.kind is LegKind.PREFILL

    async def aclose(self) -> None:
        """End what still runs, once the legs that said their last word had the time to end by themselves."""
        if self._draining:
            await asyncio.wait(self._draining, timeout=DRAIN_S)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _pump(self, start: StartLeg, instance: Instance, request: LegRequest) -> None:
        try:
            with instance.occupied():
                await self._read(start, instance, request)
        except BackendError as error:
            self.last_failure = error
            if isinstance(error, EngineTimeout):
                self._patience.note_silence(instance)
            self._pools.report_failure(instance, error)
            self._cast.lose(instance)
            self._record.leg_ended(start, instance.spec.id, type(error).__name__)
            self._mailbox.post(LegFailed(start.leg, refused=isinstance(error, EngineRejected)))
        else:
            self._record.leg_ended(start, instance.spec.id, "ended")
            self._mailbox.post(LegEnded(start.leg))

    def _on_pumped(self, leg: LegId, done: asyncio.Task[None]) -> None:
        """An adapter that raised what it may not raise has failed, too: nobody must wait for its leg."""
        if not done.cancelled() and (error := done.exception()) is not None:
            log.error("leg %s of %s ended by %s", leg, self._course.request.request_id, type(error).__name__)
            self._mailbox.post(LegFailed(leg))

    async def _read(self, start: StartLeg, instance: Instance, request: LegRequest) -> None:
        pace = self._make_pace(start, instance)
        try:
            async with aclosing(instance.engine.generate(request)) as stream:
                async for chunk in stream:
                    if chunk.kv_ticket is not None:
                        self._loan.note(chunk.kv_ticket)
                    if chunk.usage is not None:
                        self._note_usage(start, chunk.usage)
                    if chunk.token_ids and pace.note(len(chunk.token_ids), self._pools.clock()):
                        self._pools.report_success(instance)
                        self._patience.note_answer(start, instance)
                        self._course.note_held(instance.spec.id, request.prompt)
                    finish = chunk.finish_reason and FINISHES.get(chunk.finish_reason)
                    if finish and start.leg in self._running and start.kind is not LegKind.PREFILL:
                        self._running[start.leg].said_last = True
                    if chunk.token_ids or finish:
                        await self._mailbox.put(LegTokens(start.leg, chunk.token_ids, chunk.logprobs, finish))
        finally:
            pace.end()

    def _make_pace(self, start: StartLeg, instance: Instance) -> LegPace:
        if ROLE_OF[start.kind] is not Role.MD:
            return LegPace(instance, start, self._pools.clock())
        lacking_tokens = self._patience.lacking_tokens(start, instance)
        is_first = not self._patience.knows(instance)
        return LegPace(instance, start, self._pools.clock(), lacking_tokens, is_first)

    def _note_usage(self, start: StartLeg, usage: LegUsage) -> None:
        self._record.leg_usage(start, usage)
        if start.kind is LegKind.PREFILL:
            self.prefill_usage = usage
