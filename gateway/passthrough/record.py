"""Notes what a passed request, or an answer from outside, does and costs: its timeline and metrics. Never any text."""

from backends.engines.external import ExternalChunk, ExternalUsage
from backends.errors import BackendError
from gateway.api.outside import Outside
from gateway.passthrough.usage import UsageReader
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.timeline import Timeline


class PassRecord:
    """One request's telemetry. ``close`` counts it."""

    def __init__(self, timeline: Timeline, metrics: Metrics, path: str) -> None:
        self.usage = UsageReader()
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
        self._timeline.summary["first_byte_s"] = round(ttfb_s, 6)

    def finished(self) -> None:
        """The server's answer is complete."""
        self._outcome = "finished"

    def broken(self, error: BackendError) -> None:
        """The answer broke off."""
        self._outcome = "failed"
        self._timeline.note("broken", cause=str(error))

    def failed(self) -> None:
        """Nothing took it."""
        self._outcome = "failed"

    def close(self) -> None:
        """Count the request."""
        self._timeline.note(self._outcome)
        self._timeline.summary.update(
            server=self._server,
            outcome=self._outcome,
            prompt_tokens=self.usage.prompt_tokens,
            completion_tokens=self.usage.completion_tokens,
        )
        self._metrics.in_flight.labels(self._timeline.model).dec()
        self._metrics.passed.requests.labels(self._server, self._path, self._outcome).inc()


PLAN = "external"


class Spending:
    """One answer's telemetry. ``close`` counts it."""

    def __init__(self, timeline: Timeline, metrics: Metrics, outside: Outside) -> None:
        self.usage: ExternalUsage | None = None
        self._timeline = timeline
        self._metrics = metrics
        self._provider_model = outside.model
        self._outcome = "client_gone"
        self._begun = False
        timeline.summary.update(plan=PLAN, reason=outside.reason, provider_model=outside.model)
        metrics.decisions.labels(timeline.model, PLAN, outside.reason).inc()
        metrics.in_flight.labels(timeline.model).inc()

    def take(self, chunk: ExternalChunk) -> None:
        """A piece of the answer came."""
        if not self._begun:
            self._begun = True
            ttft_s = self._timeline.clock() - self._timeline.started_s
            self._metrics.ttft.labels(self._timeline.model, PLAN).observe(ttft_s)
            self._timeline.summary["ttft_s"] = round(ttft_s, 6)
        self.usage = chunk.usage or self.usage

    def finished(self) -> None:
        """The answer is complete."""
        self._outcome = "finished"

    def failed(self, error: BackendError) -> None:
        """The answer cannot go on."""
        self._outcome = "failed"
        self._timeline.note("failed", cause=str(error))

    def close(self) -> None:
        """Count the answer."""
        usage, model = self.usage, self._timeline.model
        self._timeline.note(self._outcome)
        self._timeline.summary["outcome"] = self._outcome
        if usage is not None:
            self._timeline.summary.update(
                prompt_tokens=usage.prompt_tokens, completion_tokens=usage.completion_tokens, cost_usd=usage.cost_usd
            )
            self._metrics.passed.external_tokens.labels(self._provider_model, "prompt").inc(usage.prompt_tokens)
            self._metrics.passed.external_tokens.labels(self._provider_model, "completion").inc(usage.completion_tokens)
            self._metrics.passed.external_cost.labels(self._provider_model).inc(usage.cost_usd or 0.0)
        self._metrics.in_flight.labels(model).dec()
        self._metrics.requests.labels(model, PLAN, self._outcome).inc()
