"""An OpenTelemetry receiver on a real socket: OTLP over HTTP, decoded by the protocol's own messages."""

from collections.abc import Iterable

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tests.fakes.server import AppServer


class OtlpReceiver(AppServer):
    """Keeps the spans that it is sent. ``status``: what it answers."""

    def __init__(self) -> None:
        super().__init__(Starlette(routes=[Route("/v1/traces", self._take, methods=["POST"])]))
        self.spans: list[Span] = []
        self.resources: list[dict[str, object]] = []
        self.bodies: list[bytes] = []
        self.status = 200

    async def received(self, count: int) -> list[Span]:
        """Wait until so many spans came in all."""
        await self._watch.until(lambda: len(self.spans) >= count)
        return self.spans

    def named(self, name: str) -> Span:
        """The only span of a name."""
        (span,) = [span for span in self.spans if span.name == name]
        return span

    async def _take(self, request: Request) -> Response:
        body = await request.body()
        self.bodies.append(body)
        if self.status == 200:
            for part in ExportTraceServiceRequest.FromString(body).resource_spans:
                self.resources.append(read_attributes(part.resource.attributes))
                for scope in part.scope_spans:
                    self.spans += scope.spans
        self._watch.changed()
        return Response(status_code=self.status, media_type="application/x-protobuf")


def read_attributes(pairs: Iterable[KeyValue]) -> dict[str, object]:
    """Attributes as a dictionary."""
    found: dict[str, object] = {}
    for pair in pairs:
        found[pair.key] = _read(pair.value)
    return found


def _read(value: AnyValue) -> object:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_read(one) for one in value.array_value.values]
    return getattr(value, kind or "string_value")
