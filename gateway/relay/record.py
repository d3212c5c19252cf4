"""Notes what one answer does, as its timeline, as metrics, and as what its tenant has used."""

from collections.abc import Callable

from backends.errors import BackendError
from backends.types import LegUsage, TransferProgress
from gateway.errors import GatewayError
from gateway.limits.usage import Use, use_of_slo
from gateway.relay.splice import Splice
from gateway.relay.splice_events import LegId, StartLeg
from gateway.relay.types import Tokens
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.timeline import Timeline
from gateway.telemetry.trace import TracedRequest
from policies.plans import Plan
from policies.rules import NO_SLO, SloRules
from policies.types import Role


class Record:
    """One answer's telemetry. ``close`` counts the answer; it may be called more than once.

    ``note_use`` is told what was used, in parts. ``slo``: what its tenant was promised; the time that it waited for a
    place, ``waited_s``, counts there, as the client waited too.
    """

    def __init__(
        self,
        timeline: Timeline,
        metrics: Metrics,
        plan: Plan,
        note_use: Callable[[Use], None] = lambda use: None,
        slo: SloRules = NO_SLO,
        waited_s: float = 0.0,
        traced: TracedRequest | None = None,
    ) -> None:
        self._traced = traced
        self._timeline = timeline
        self.note = timeline.note
        """Adds something to the timeline only."""
        self._metrics = metrics
        self._plan = plan
        self._note_use = note_use
        self._legs: dict[LegId, tuple[float, float]] = {}
        self._cost = 0.0
        self._model = timeline.model
        self._outcome = "client_gone"
        self._closed = False
        self._last: tuple[str, str, float] | None = None
        self._wan_bytes = self._attempt_bytes = 0
        self._roles: dict[str, int] = {}
        self._slo = slo
        self._asked_s = timeline.started_s - waited_s
        self._first_s: float | None = None
        self._longest_gap_s = 0.0
        self._finished_s: float | None = None
        self._slo_met: bool | None = None
        timeline.summary.update(
            plan=plan.kind,
            reason=plan.reason,
            prefill=plan.prefill,
            relay=plan.relay,
            main=plan.main,
            fused=plan.fused,
        )
        metrics.decisions.labels(self._model, plan.kind, plan.reason).inc()
        metrics.in_flight.labels(self._model).inc()

    def tokens(self, given: Tokens) -> None:
        """The client gets these ids now."""
        role, instance = given.role, given.instance
        now_s = self._timeline.clock()
        if self._last is None:
            self._first_s = now_s
            ttft_s = now_s - self._timeline.started_s
            self._metrics.ttft.labels(self._model, self._plan.kind).observe(ttft_s)
            self._timeline.summary["ttft_s"] = round(ttft_s, 6)
            self.note("first_token", role=role, instance=instance)
        else:
            gap_s = now_s - self._last[2]
            self._longest_gap_s = max(self._longest_gap_s, gap_s)
            if self._last[1] != instance:
                self._metrics.joint_gap.labels(self._model).observe(gap_s)
                self.note("joint", role=role, instance=instance, position=given.position, gap_s=round(gap_s, 6))
        self._last = (role, instance, now_s)
        self._roles[role] = self._roles.get(role, 0) + len(given.ids)

    def cut(self, completion_tokens: int) -> None:
        """The answer's text ended with the first so many ids: those behind it do not count."""
        beyond = sum(self._roles.values()) - completion_tokens
        if beyond > 0 and self._last is not None:
            role = self._last[0]
            self._roles[role] = max(0, self._roles[role] - beyond)

    def leg_started(self, start: StartLeg, instance: str, cost_per_s: float = 0.0, rank: int | None = None) -> None:
        """A leg begins. ``cost_per_s``: what its place in the instance costs. ``rank``: of several in the instance."""
        self._legs[start.leg] = (self._timeline.clock(), cost_per_s)
        where = {"instance": instance} if rank is None else {"instance": instance, "rank": rank}
        self.note("leg_started", leg=start.leg, kind=start.kind.name.lower(), **where, base=start.base)

    def leg_usage(self, start: StartLeg, usage: LegUsage) -> None:
        """An engine said what a leg cost."""
        self.note("leg_usage", leg=start.leg, prompt_tokens=usage.prompt_tokens, cached_tokens=usage.cached_tokens)

    def leg_ended(self, start: StartLeg, instance: str, outcome: str) -> None:
        started_s, cost_per_s = self._legs.pop(start.leg, (0.0, 0.0))
        self._cost += (self._timeline.clock() - started_s) * cost_per_s
        self._metrics.legs.labels(start.kind.name.lower(), outcome).inc()
        self.note("leg_ended", leg=start.leg, kind=start.kind.name.lower(), instance=instance, outcome=outcome)

    def transfer_started(self) -> None:
        """A transfer is opened, or opened again after it failed: it counts its own bytes from 0."""
        self._attempt_bytes = 0
        self.note("transfer_started")

    def transfer(self, progress: TransferProgress) -> None:
        """The KV came on."""
        moved_bytes = max(0, progress.wan_bytes - self._attempt_bytes)
        self._metrics.kv.wan_bytes.labels(self._model).inc(moved_bytes)
        if moved_bytes:
            self._note_use(Use(wan_bytes=moved_bytes))
        self._attempt_bytes = progress.wan_bytes
        self._wan_bytes += moved_bytes
        self._timeline.summary["wan_bytes"] = self._wan_bytes
        if progress.state != "moving":
            self.note(
                f"transfer_{progress.state}",
                chunks_total=progress.chunks_total,
                chunks_present=progress.chunks_present,
                wan_bytes=progress.wan_bytes,
            )

    def finished(self, reason: str, completion_tokens: int, cached_tokens: int | None) -> None:
        """The answer is complete."""
        self._outcome = reason
        self._finished_s = self._timeline.clock()
        self.note("finished", reason=reason, completion_tokens=completion_tokens, cached_tokens=cached_tokens)

    def failed(self, failure: GatewayError, cause: BackendError | None) -> None:
        """The answer cannot go on."""
        self._outcome = "failed"
        self._slo_met = self._slo.judge_failure() if failure.status >= 500 else None
        self.note("failed", status=failure.status, cause=str(cause) if cause else None)

    def close(self, splice: Splice) -> None:
        """Count the answer."""
        if self._closed:
            return
        self._closed = True
        if self._outcome == "client_gone":
            self.note("client_gone")
        elif self._finished_s is not None:
            self._slo_met = self._judge(self._finished_s)
        self._timeline.summary.update(
            outcome=self._outcome,
            tokens={role.value: self._roles.get(role.value, 0) for role in Role},
            discarded_tokens=splice.discarded_tokens,
            handoff_rounds=splice.rounds,
            slo_met=self._slo_met,
        )
        self._metrics.in_flight.labels(self._model).dec()
        self._metrics.requests.labels(self._model, self._plan.kind, self._outcome).inc()
        self._metrics.discarded.labels(self._model).inc(splice.discarded_tokens)
        for role, count in self._roles.items():
            self._metrics.tokens.labels(self._model, role).inc(count)
        p, rld, md = (self._roles.get(role.value, 0) for role in (Role.P, Role.RLD, Role.MD))
        use = use_of_slo(self._slo_met)
        use.add(Use(p_tokens=p, rld_tokens=rld, md_tokens=md, cost=self._cost))
        self._note_use(use)
        if self._traced is not None:
            ended_s = self._timeline.clock() if self._finished_s is None else self._finished_s
            ttft_s = None if self._first_s is None else self._first_s - self._asked_s
            self._traced.end(p + rld + md, ttft_s, self._longest_gap_s, ended_s - self._asked_s)
        self._timeline.end()

    def _judge(self, finished_s: float) -> bool | None:
        """Judge by what the client saw: its last tokens may have waited for it, or for the joint."""
        first_s = finished_s if self._first_s is None else self._first_s
        ended_s = finished_s if self._last is None else max(finished_s, self._last[2])
        return self._slo.judge(first_s - self._asked_s, ended_s - self._asked_s, self._longest_gap_s)
