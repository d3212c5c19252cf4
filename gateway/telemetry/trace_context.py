"""W3C trace context: the trace that a request is part of, as headers say it, and the gateway's own spans of it.

https://www.w3.org/TR/trace-context/ says how the headers are spelled.
"""

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b

_PARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1
MOST_STATE_CHARACTERS = 512


@dataclass(frozen=True, slots=True)
class TraceContext:
    """One span by its ids, in lower-case hex. ``is_ours``: it is told of by this gateway, not only passed on."""

    trace_id: str
    span_id: str
    flags: int = _SAMPLED
    state: str | None = None
    is_ours: bool = False

    @property
    def is_sampled(self) -> bool:
        """Whether its spans are wanted."""
        return bool(self.flags & _SAMPLED)

    def part(self, name: str) -> "TraceContext":
        """A span within this one, always the same for a name; where this one is only passed on, this one itself."""
        if not self.is_ours:
            return self
        return replace(self, span_id=blake2b(f"{self.span_id} {name}".encode(), digest_size=8).hexdigest())

    def of_leg(self, leg: int) -> "TraceContext":
        """The span of one engine call."""
        return self.part(f"leg-{leg}")

    def headers(self) -> dict[str, str]:
        """What whoever is asked within this span is sent."""
        lines = {"traceparent": f"00-{self.trace_id}-{self.span_id}-{self.flags:02x}"}
        return lines if self.state is None else lines | {"tracestate": self.state}


def read_context(headers: Mapping[str, str]) -> TraceContext | None:
    """Return the span that a client names; None: none, or not as it is spelled."""
    found = _PARENT.fullmatch(headers.get("traceparent", "").strip())
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if version == "ff" or (version == "00" and more) or not int(trace_id, 16) or not int(span_id, 16):
        return None
    state = headers.get("tracestate", "")
    is_kept = 0 < len(state) <= MOST_STATE_CHARACTERS and state.isascii() and state.isprintable()
    return TraceContext(trace_id, span_id, int(flags, 16) & _SAMPLED, state if is_kept else None)


def begin_span(parent: TraceContext | None) -> TraceContext | None:
    """Return a new span under the client's, or the first of a trace; a parent that is not sampled stays as it is."""
    if parent is None:
        return TraceContext(secrets.token_hex(16), secrets.token_hex(8), is_ours=True)
    return replace(parent, span_id=secrets.token_hex(8), is_ours=True) if parent.is_sampled else parent
