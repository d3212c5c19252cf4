"""A request's timeline as spans: one for the request, in it one for each stage, leg and transfer. None holds text."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from gateway.telemetry.timeline import Timeline
from gateway.telemetry.trace_context import TraceContext

Attribute = str | bool | int | float | tuple[str, ...]
OPERATIONS = {
    "cmpl": "text_completion",
    "chatcmpl": "chat",
    "msg": "chat",
    "resp": "chat",
    "/v1/embeddings": "embeddings",
    "/v1/completions": "text_completion",
    "/v1/chat/completions": "chat",
}
"""By what a request's id begins with, or by the path of one that was passed on."""
WELL = {"ended", "closed", "complete", "stopped", "stop", "length", "finished", "client_gone", "goes_on"}
LEG_PARTS = ("leg_started", "leg_ended", "leg_usage")
TRANSFER_STARTED = "transfer_started"
TRANSFER_ENDS = ("transfer_complete", "transfer_failed", "transfer_stopped", "transfer_goes_on")
PARTS = {*LEG_PARTS, TRANSFER_STARTED, *TRANSFER_ENDS}
"""Events that spans of their own tell of."""
STAGES = {"tokenise": "tokenise_s", "wait": "waited_s", "decide": "decide_s"}
"""What came before the timeline began, in this order, and where its summary tells how long each took."""


@dataclass(slots=True)
class SpanEvent:
    """Something that happened at one moment of a span."""

    name: str
    at_s: float
    attributes: dict[str, Attribute]


@dataclass(slots=True)
class TracedSpan:
    """``kind``: whether the gateway was asked, asks or works. Times: seconds since 1970. ``error``: what went wrong."""

    name: str
    kind: Literal["server", "client", "internal"]
    context: TraceContext
    parent: TraceContext | None
    start_s: float
    end_s: float
    attributes: dict[str, Attribute]
    events: list[SpanEvent] = field(default_factory=list)
    error: str | None = None


def make_spans(timeline: Timeline, unix_s: Callable[[], float]) -> list[TracedSpan]:
    """Return the spans of a request that has ended just now."""
    if timeline.trace is None or not timeline.trace.is_ours:
        return []
    end_s = timeline.clock() - timeline.started_s
    made = _Made(timeline, timeline.trace, unix_s() - end_s, end_s)
    return [made.root(), *made.stages(), *made.legs(), *made.transfers()]


@dataclass(frozen=True, slots=True)
class _Made:
    """``origin_s``: when the request began, in seconds since 1970; ``end_s``: how long it took."""

    timeline: Timeline
    trace: TraceContext
    origin_s: float
    end_s: float

    def root(self) -> TracedSpan:
        """The request's own."""
        timeline, summary = self.timeline, self.timeline.summary
        operation = OPERATIONS.get(summary.get("path", timeline.request_id.replace("_", "-").partition("-")[0]))
        return TracedSpan(
            name=f"{operation} {timeline.model}" if operation else timeline.model,
            kind="server",
            context=self.trace,
            parent=timeline.parent,
            start_s=self.origin_s - sum(took_s for _, took_s in self._stages()),
            end_s=self.origin_s + self.end_s,
            attributes=_kept({"gen_ai.operation.name": operation, **_describe(timeline)}),
            events=[
                SpanEvent(event["event"], self.origin_s + event["t_s"], _told(event))
                for event in timeline.events
                if event["event"] not in PARTS
            ],
            error=_error(summary.get("outcome")),
        )

    def _stages(self) -> list[tuple[str, float]]:
        summary = self.timeline.summary
        return [(name, summary[key]) for name, key in STAGES.items() if summary.get(key)]

    def stages(self) -> Iterator[TracedSpan]:
        """One for each thing that was done with the request before anybody was asked."""
        stages = self._stages()
        at_s = self.origin_s - sum(took_s for _, took_s in stages)
        for name, took_s in stages:
            yield TracedSpan(name, "internal", self.trace.part(name), self.trace, at_s, at_s + took_s, {})
            at_s += took_s

    def legs(self) -> Iterator[TracedSpan]:
        """One for each engine call; each extend round is one."""
        of_leg: dict[int, dict[str, Mapping[str, Any]]] = {}
        for event in self.timeline.events:
            if event["event"] in LEG_PARTS:
                of_leg.setdefault(event["leg"], {})[event["event"]] = event
        for leg, events in of_leg.items():
            start, end, usage = (events.get(name, {}) for name in LEG_PARTS)
            if not start:
                continue
            attributes = {
                "gen_ai.request.model": self.timeline.model,
                "gen_ai.usage.input_tokens": usage.get("prompt_tokens"),
                "gen_ai.usage.cache_read.input_tokens": usage.get("cached_tokens"),
                **_told(start),
            }
            name = f"{start['kind']} {start['instance']}"
            yield self._part(name, self.trace.of_leg(leg), start, end, end.get("outcome"), attributes)

    def transfers(self) -> Iterator[TracedSpan]:
        """One for each time that a transfer was opened. One that was left to the alignment goes on after the answer."""
        start: Mapping[str, Any] | None = None
        count = 0
        for event in [*self.timeline.events, {"event": "transfer_goes_on", "t_s": self.end_s}]:
            name = event["event"]
            if start is not None and name in (TRANSFER_STARTED, *TRANSFER_ENDS):
                count += 1
                outcome = name.removeprefix("transfer_") if name != TRANSFER_STARTED else "failed"
                yield self._part(
                    "kv_transfer", self.trace.part(f"transfer-{count}"), start, event, outcome, _told(event)
                )
                start = None
            if name == TRANSFER_STARTED:
                start = event

    def _part(
        self,
        name: str,
        context: TraceContext,
        start: Mapping[str, Any],
        end: Mapping[str, Any],
        outcome: str | None,
        attributes: Mapping[str, Any],
    ) -> TracedSpan:
        return TracedSpan(
            name=name,
            kind="client",
            context=context,
            parent=self.trace,
            start_s=self.origin_s + start["t_s"],
            end_s=self.origin_s + end.get("t_s", self.end_s),
            attributes=_kept({**attributes, "pdd.outcome": outcome}),
            error=_error(outcome),
        )


def _describe(timeline: Timeline) -> dict[str, Any]:
    """What a request was and came to, by the names of the GenAI conventions where they have one."""
    summary = timeline.summary
    known: dict[str, Any] = {
        "gen_ai.request.model": timeline.model,
        "gen_ai.response.id": timeline.request_id,
        "gen_ai.usage.input_tokens": summary.get("prompt_tokens"),
        "gen_ai.usage.output_tokens": summary.get("completion_tokens"),
        **{f"pdd.{name}": value for name, value in summary.items()},
        **{f"pdd.tokens.{role.lower()}": count for role, count in summary.get("tokens", {}).items()},
    }
    if timeline.decision is not None:
        known["gen_ai.usage.input_tokens"] = timeline.decision.facts.prompt_tokens
    for event in timeline.events:
        if event["event"] == "finished" and "reason" in event:
            known["gen_ai.response.finish_reasons"] = (event["reason"],)
            known["gen_ai.usage.output_tokens"] = event["completion_tokens"]
            known["gen_ai.usage.cache_read.input_tokens"] = event["cached_tokens"]
    return known


def _error(outcome: str | None) -> str | None:
    return None if outcome is None or outcome in WELL else outcome


def _told(event: Mapping[str, Any]) -> dict[str, Attribute]:
    return _kept({f"pdd.{name}": value for name, value in event.items() if name not in ("event", "t_s")})


def _kept(attributes: Mapping[str, Any]) -> dict[str, Attribute]:
    """What is known, and of a type that spans may hold."""
    return {name: value for name, value in attributes.items() if isinstance(value, str | bool | int | float | tuple)}
