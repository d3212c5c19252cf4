"""Notes what a passed request does, as its timeline and as metrics. Never any text."""

from backends.errors import BackendError
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
