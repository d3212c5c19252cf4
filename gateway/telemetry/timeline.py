"""What happened to each recent request, and when: legs, hand-offs, gaps, bytes. Never any text or ids."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from gateway.telemetry.trace_context import TraceContext, begin_span
from policies.plans import Decision


@dataclass(slots=True)
class Timeline:
    """Course of one request. Times are seconds since it was admitted."""

    request_id: str
    model: str
    clock: Callable[[], float]
    started_s: float
    summary: dict[str, Any] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    most_events: int = 500
    decision: Decision | None = None
    """Why it is answered as it is; None: nothing was to be decided."""
    trace: TraceContext | None = None
    """Its span, which is its client's where nothing is told of it."""
    parent: TraceContext | None = None
    """The client's span."""
    on_end: "Callable[[Timeline], None] | None" = None

    def end(self) -> None:
        """Nothing more will happen: whoever is told of it, is told now."""
        if self.on_end is not None:
            tell, self.on_end = self.on_end, None
            tell(self)

    def note(self, what: str, **details: Any) -> None:
        """Add an event; beyond ``most_events`` only the count goes on."""
        if len(self.events) >= self.most_events:
            self.summary["events_dropped"] = self.summary.get("events_dropped", 0) + 1
            return
        self.events.append({"t_s": round(self.clock() - self.started_s, 6), "event": what, **details})

    def as_dict(self) -> dict[str, Any]:
        """JSON form, as ``GET /admin/requests/{id}`` shows it."""
        return {"request_id": self.request_id, "model": self.model, **self.summary, "events": self.events}

    def in_short(self) -> dict[str, Any]:
        """JSON form without the events, as ``GET /admin/requests`` shows it."""
        age_s = round(self.clock() - self.started_s, 3)
        return {"request_id": self.request_id, "model": self.model, "age_s": age_s, **self.summary}


class Timelines:
    """The last ``most`` timelines by request id. ``take``: is told of each that has ended, as spans of its trace."""

    def __init__(
        self, clock: Callable[[], float], most: int = 1000, take: Callable[[Timeline], None] | None = None
    ) -> None:
        self._clock = clock
        self._most = most
        self._take = take
        self._kept: OrderedDict[str, Timeline] = OrderedDict()

    def open(self, request_id: str, model: str, parent: TraceContext | None = None) -> Timeline:
        """Start a timeline and forget the oldest beyond the bound. ``parent``: the client's span."""
        timeline = Timeline(request_id, model, self._clock, self._clock(), trace=parent, parent=parent)
        if self._take is not None:
            timeline.trace, timeline.on_end = begin_span(parent), self._take
        self._kept[request_id] = timeline
        if len(self._kept) > self._most:
            self._kept.popitem(last=False)
        return timeline

    def find(self, request_id: str) -> list[Timeline]:
        """The kept timelines of a request: one, or one for each of its choices (``ID-0``, ``ID-1``, ...)."""
        if request_id in self._kept:
            return [self._kept[request_id]]
        found: list[Timeline] = []
        while (choice := self._kept.get(f"{request_id}-{len(found)}")) is not None:
            found.append(choice)
        return found

    def recent(self, most: int) -> list[Timeline]:
        """The timelines that were opened last, newest first."""
        return list(islice(reversed(self._kept.values()), most))

    def newest(self) -> Timeline | None:
        """The timeline that was opened last."""
        return next(reversed(self._kept.values()), None)
