"""Notes what a passed request, or an answer from outside, does and costs: its timeline and metrics. Never any text."""

from backends.engines.external import ExternalChunk, ExternalUsage
from backends.errors import BackendError, EngineRejected
from gateway.api.outside import Outside
from gateway.passthrough.usage import UsageReader
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.timeline import Timeline
from gateway.telemetry.trace import TracedRequest
from policies.rules import SloRules


class PassRecord:
    """One request's telemetry. ``close`` counts it; ``slo_met`` goes by its first byte and its end."""

    def __init__(self, timeline: Timeline, metrics: Metrics, path: str, slo: SloRules) -> None:
        self.usage = UsageReader()
        self.slo_met: bool | None = None
        self._slo = slo
        self._first_byte_s = 0.0
        self._timeline = timeline
        self._metrics = metrics
        self._path = path
        self._outcome = "client_gone"
        self._server = "none"
        timeline.summary.update(plan="passed_on", path=path)
        metrics.in_flight.labels(timeline.model).inc()

    def tried(self, server: str) -> None:
        """It is sent to a server now."""
        self._server = server
        self._timeline.note("sent", server=server)

    def refused(self, server: str, status: int) -> None:
        """The server gave no answer to relay."""
        self._outcome = "refused" if status < 500 else "failed"
        self._timeline.note("refused", server=server, status=status)

    def first_byte(self) -> None:
        """The answer begins."""
        self._outcome = "client_gone"
        ttfb_s = self._timeline.clock() - self._timeline.started_s
        self._metrics.passed.first_byte.labels(self._path).observe(ttfb_s)
        self._first_byte_s = ttfb_s
        self._timeline.summary["first_byte_s"] = round(ttfb_s, 6)

    def finished(self) -> None:
        """The server's answer is complete."""
        self._outcome = "finished"
        self.slo_met = self._slo.judge(self._first_byte_s, self._timeline.clock() - self._timeline.started_s, 0.0)

    def broken(self, error: BackendError) -> None:
        """The answer broke off."""
        self._outcome = "failed"
        self._timeline.note("broken", cause=str(error))

    def failed(self) -> None:
        """Nothing took it."""
        self._outcome = "failed"

    def close(self) -> None:
        """Count the request."""
        if self._outcome == "failed":
            self.slo_met = self._slo.judge_failure()
        self._timeline.note(self._outcome)
        self._timeline.summary.update(
            server=self._server,
            outcome=self._outcome,
            prompt_tokens=self.usage.prompt_tokens,
            completion_tokens=self.usage.completion_tokens,
            slo_met=self.slo_met,
        )
        self._metrics.in_flight.labels(self._timeline.model).dec()
        self._metrics.passed.requests.labels(self._server, self._path, self._outcome).inc()
        self._timeline.end()

    def trace(self, traced: TracedRequest) -> None:
        """Tell what became of it."""
        total_s = self._timeline.clock() - self._timeline.started_s
        told = self.usage
        traced.end(told.completion_tokens or 0, self._first_byte_s or None, None, total_s, told.prompt_tokens)


PLAN = "external"


class Spending:
    """One answer's telemetry. ``close`` counts it. ``waited_s``: how long it waited for a place."""

    def __init__(self, timeline: Timeline, metrics: Metrics, outside: Outside, slo: SloRules, waited_s: float) -> None:
        self.usage: ExternalUsage | None = None
        self.slo_met: bool | None = None
        self._slo = slo
        self._asked_s = timeline.started_s - waited_s
        self._first_s: float | None = None
        self._last_s = 0.0
        self._longest_gap_s = 0.0
        self._timeline = timeline
        self._metrics = metrics
        self._provider_model = outside.model
        self._outcome = "client_gone"
        timeline.summary.update(plan=PLAN, reason=outside.reason, provider_model=outside.model)
        metrics.decisions.labels(timeline.model, PLAN, outside.reason).inc()
        metrics.in_flight.labels(timeline.model).inc()

    def take(self, chunk: ExternalChunk) -> None:
        """A piece of the answer came."""
        now_s = self._timeline.clock()
        if self._first_s is None:
            self._first_s = now_s
            ttft_s = now_s - self._timeline.started_s
            self._metrics.ttft.labels(self._timeline.model, PLAN).observe(ttft_s)
            self._timeline.summary["ttft_s"] = round(ttft_s, 6)
        else:
            self._longest_gap_s = max(self._longest_gap_s, now_s - self._last_s)
        self._last_s = now_s
        self.usage = chunk.usage or self.usage

    def finished(self) -> None:
        """The answer is complete."""
        self._outcome = "finished"
        now_s = self._timeline.clock()
        first_s = now_s if self._first_s is None else self._first_s
        self.slo_met = self._slo.judge(first_s - self._asked_s, now_s - self._asked_s, self._longest_gap_s)

    def failed(self, error: BackendError) -> None:
        """The answer cannot go on."""
        self._outcome = "failed"
        is_clients = isinstance(error, EngineRejected) and error.status < 500
        self.slo_met = None if is_clients else self._slo.judge_failure()
        self._timeline.note("failed", cause=str(error))

    def close(self) -> None:
        """Count the answer."""
        usage, model = self.usage, self._timeline.model
        self._timeline.note(self._outcome)
        self._timeline.summary.update(outcome=self._outcome, slo_met=self.slo_met)
        if usage is not None:
            self._timeline.summary.update(
                prompt_tokens=usage.prompt_tokens, completion_tokens=usage.completion_tokens, cost_usd=usage.cost_usd
            )
            self._metrics.passed.external_tokens.labels(self._provider_model, "prompt").inc(usage.prompt_tokens)
            self._metrics.passed.external_tokens.labels(self._provider_model, "completion").inc(usage.completion_tokens)
            self._metrics.passed.external_cost.labels(self._provider_model).inc(usage.cost_usd or 0.0)
        self._metrics.in_flight.labels(model).dec()
        self._metrics.requests.labels(model, PLAN, self._outcome).inc()
        self._timeline.end()
