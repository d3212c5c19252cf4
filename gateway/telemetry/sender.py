"""Sends spans to an OpenTelemetry receiver, in the background.

What finds no room, or is not taken, is dropped and counted.
"""

import asyncio
import importlib
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from gateway.tasks import end_task, run_every
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.spans import TracedSpan, make_spans
from gateway.telemetry.timeline import Timeline

log = logging.getLogger(__name__)

MOST_WAITING = 8_192
MOST_AT_ONCE = 512
INTERVAL_S = 1.0

Export = Callable[[Sequence[TracedSpan]], bool]
"""Sends spans, in a thread of its own; says whether they were taken."""


class SpanSender:
    """Takes timelines that have ended. ``close_export``: ends what ``export`` waits for."""

    def __init__(
        self,
        export: Export,
        close_export: Callable[[], None],
        metrics: Metrics,
        *,
        most_waiting: int = MOST_WAITING,
        unix_s: Callable[[], float] = time.time,
    ) -> None:
        self._export = export
        self._close_export = close_export
        self._metrics = metrics
        self._most_waiting = most_waiting
        self._unix_s = unix_s
        self._waiting: deque[TracedSpan] = deque()
        self._task: asyncio.Task[None] | None = None

    def take(self, timeline: Timeline) -> None:
        """Send a request's spans soon."""
        spans = make_spans(timeline, self._unix_s)
        if len(self._waiting) + len(spans) > self._most_waiting:
            self._metrics.spans_dropped.labels("full").inc(len(spans))
        else:
            self._waiting.extend(spans)

    async def start(self) -> None:
        """Send in the background from here on."""
        self._task = asyncio.create_task(run_every(INTERVAL_S, self.flush))

    async def aclose(self) -> None:
        """Send what waits, as far as the receiver takes it, and end."""
        await end_task(self._task)
        await self.flush()
        self._drop(len(self._waiting))
        self._close_export()

    async def flush(self) -> None:
        """Send what waits now, in parts; the first that is not taken ends it, and is dropped."""
        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(MOST_AT_ONCE, len(self._waiting)))]
            if await asyncio.to_thread(self._export, batch):
                self._metrics.spans_sent.inc(len(batch))
                continue
            self._drop(len(batch))
            return

    def _drop(self, count: int) -> None:
        if count:
            self._metrics.spans_dropped.labels("refused").inc(count)
            log.warning("%d spans were not taken by the OpenTelemetry receiver", count)


def open_sender(endpoint: str, version: str, metrics: Metrics) -> SpanSender:
    """Load OpenTelemetry's SDK and return what sends to a receiver's base address. Raises ImportError."""
    otlp: Any = importlib.import_module("gateway.telemetry.otlp")
    export = otlp.OtlpExport(endpoint, version)
    return SpanSender(export, export.close, metrics)
