"""Spans as OpenTelemetry's SDK spells them, sent by its OTLP/HTTP exporter; imported only where a receiver is named."""

import os
from collections.abc import Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from gateway.telemetry.spans import TracedSpan
from gateway.telemetry.trace_context import TraceContext

KINDS = {"server": SpanKind.SERVER, "client": SpanKind.CLIENT, "internal": SpanKind.INTERNAL}
TIMEOUT_S = 5.0
SCOPE = InstrumentationScope("pdd_gateway")


class OtlpExport:
    """Sends to a receiver's base address; OTEL_EXPORTER_OTLP_HEADERS, OTEL_SERVICE_NAME and the like hold."""

    def __init__(self, endpoint: str, version: str) -> None:
        self._exporter = OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces", timeout=TIMEOUT_S)
        name = os.environ.get("OTEL_SERVICE_NAME", "pdd-gateway")
        self._resource = Resource.create({SERVICE_NAME: name, SERVICE_VERSION: version})

    def __call__(self, spans: Sequence[TracedSpan]) -> bool:
        """Send them; False: they were not taken. The exporter tries again for ``TIMEOUT_S``."""
        return self._exporter.export([self._spell(span) for span in spans]) is SpanExportResult.SUCCESS

    def close(self) -> None:
        """End."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def _spell(self, span: TracedSpan) -> ReadableSpan:
        return ReadableSpan(
            span.name,
            context=_spell_context(span.context, is_remote=False),
            parent=None if span.parent is None else _spell_context(span.parent, is_remote=span.kind == "server"),
            resource=self._resource,
            attributes=span.attributes if span.error is None else {**span.attributes, "error.type": span.error},
            events=[Event(event.name, event.attributes, _ns(event.at_s)) for event in span.events],
            kind=KINDS[span.kind],
            status=Status(StatusCode.UNSET if span.error is None else StatusCode.ERROR),
            start_time=_ns(span.start_s),
            end_time=_ns(span.end_s),
            instrumentation_scope=SCOPE,
        )


def _spell_context(context: TraceContext, *, is_remote: bool) -> SpanContext:
    return SpanContext(int(context.trace_id, 16), int(context.span_id, 16), is_remote, TraceFlags(context.flags))


def _ns(at_s: float) -> int:
    return int(at_s * 1e9)
