"""W3C trace context: what a client's headers say, and the spans that are made under it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.telemetry.trace_context import TraceContext, begin_span, read_context

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def test_a_clients_span_is_read_and_goes_on() -> None:
    """Ids, flag and state come through; what the flags mean beyond "sampled" does not."""
    found = read_context({"traceparent": f"00-{TRACE}-{SPAN}-03", "tracestate": "a=1,b=2"})
    assert found == TraceContext(TRACE, SPAN, 1, "a=1,b=2")
    assert found is not None
    assert found.headers() == {"traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": "a=1,b=2"}


@pytest.mark.parametrize(
    "line",
    [
        "",
        "x",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE}-{SPAN}-01\r\nx-evil: 1",
    ],
)
def test_what_is_not_spelled_as_it_should_be_is_no_span(line: str) -> None:
    """A header that the recommendation calls invalid counts as none."""
    assert read_context({"traceparent": line}) is None


@given(st.text(), st.text())
def test_no_header_breaks_a_header(parent: str, state: str) -> None:
    """Whatever a client sends, what goes on is a header's worth of ASCII."""
    found = read_context({"traceparent": parent, "tracestate": state})
    lines = [] if found is None else found.headers().values()
    assert all(line.isascii() and line.isprintable() for line in lines)


@given(st.text())
def test_a_state_that_is_no_header_is_left_out(state: str) -> None:
    """The span is kept without a state that cannot be sent."""
    found = read_context({"traceparent": f"01-{TRACE}-{SPAN}-00-later", "tracestate": state})
    assert found is not None and not found.is_sampled
    assert all(line.isascii() and line.isprintable() for line in found.headers().values())


def test_spans_begin_under_the_clients() -> None:
    """A new span stays in the client's trace; without a client's it begins one; an unsampled one stays as it is."""
    parent = TraceContext(TRACE, SPAN, state="a=1")
    span = begin_span(parent)
    assert span is not None and span.is_ours
    assert (span.trace_id, span.state) == (TRACE, "a=1") and span.span_id != SPAN
    first = begin_span(None)
    assert first is not None and first.is_ours and first.is_sampled and first.trace_id != TRACE
    unwanted = TraceContext(TRACE, SPAN, flags=0)
    assert begin_span(unwanted) is unwanted


def test_parts_have_ids_of_their_own() -> None:
    """Each leg is a span of its own in a span of ours, the same whoever asks; a client's span is only passed on."""
    span = TraceContext(TRACE, SPAN, is_ours=True)
    assert len({span.span_id, span.of_leg(1).span_id, span.of_leg(2).span_id, span.part("transfer-1").span_id}) == 4
    assert span.of_leg(1) == span.of_leg(1)
    assert TraceContext(TRACE, SPAN).of_leg(1) == TraceContext(TRACE, SPAN)
