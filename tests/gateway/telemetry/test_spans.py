"""Spans of requests, as a real receiver of OpenTelemetry's protocol gets them."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from gateway.app import open_spans
from gateway.config.fleet_settings import BadSettings
from gateway.config.settings import find_otlp, parse_settings
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.sender import SpanSender, open_sender
from gateway.telemetry.spans import TracedSpan
from gateway.telemetry.timeline import Timelines
from gateway.telemetry.trace_context import TraceContext
from tests.fakes.gates import HoldGate
from tests.fakes.otlp_receiver import OtlpReceiver, read_attributes
from tests.fakes.script import Cut, Script
from tests.gateway.relay.stage import MODEL, PROMPT, Stage, open_stage, read

PARENT = TraceContext("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7")
CATCH_UP = {"handoff": {"mode": "catch_up", "threshold_tokens": 2}}
VARIABLE = "OTEL_EXPORTER_OTLP_ENDPOINT"
LEAST = {
    "models": [{"name": "m", "path": "/m"}],
    "engines": [{"id": "md", "role": "MD", "model": "m", "region": "a", "url": "http://127.0.0.1:9"}],
}
SMALL = ("p1", "rld1", "md1")


@asynccontextmanager
async def open_traced() -> AsyncIterator[tuple[Stage, OtlpReceiver, SpanSender]]:
    """Run a relay service whose spans go to a receiver."""
    async with OtlpReceiver() as receiver:
        sender = await asyncio.to_thread(open_sender, receiver.url, "1.2.3", Metrics())
        async with open_stage(CATCH_UP, ids=SMALL, take=sender.take) as stage:
            yield stage, receiver, sender
        await sender.aclose()


async def relay(stage: Stage) -> None:
    """Serve a relay whose KV arrives when RLD has sent eight ids."""
    gate = HoldGate()
    stage.engines["rld1"].scripts.append(Script(holds={8: gate}))
    answer = stage.ask(trace=PARENT)
    running = asyncio.create_task(read(answer))
    await gate.arrivals()
    (await stage.path.opened()).complete()
    await running
    await answer.aclose()
    await stage.quiet()


async def test_a_relay_is_one_span_with_a_child_for_each_part() -> None:
    """The request is a child of the client's span; its legs, extend rounds and transfer are its children."""
    async with open_traced() as (stage, receiver, sender):
        await relay(stage)
        await sender.flush()
        spans = receiver.spans
        (root,) = [span for span in spans if span.parent_span_id.hex() == PARENT.span_id]
        assert {span.trace_id.hex() for span in spans} == {PARENT.trace_id}
        children = [span for span in spans if span.parent_span_id == root.span_id]
        assert len(children) == len(spans) - 1
        names = [span.name for span in children]
        assert {"decide", "prefill p1", "relay rld1", "extend md1", "final md1", "kv_transfer"} <= set(names)
        for span in children:
            assert root.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
            assert span.end_time_unix_nano <= root.end_time_unix_nano + 1_000_000
        told = read_attributes(root.attributes)
        assert told["gen_ai.request.model"] == MODEL
        assert told["gen_ai.usage.input_tokens"] == len(PROMPT)
        assert told["gen_ai.usage.output_tokens"] == 40
        assert told["gen_ai.response.finish_reasons"] == ["length"]
        assert told["pdd.plan"] == "relay" and told["pdd.tokens.p"] == 1
        assert {"first_token", "joint", "finished"} <= {event.name for event in root.events}
        assert root.status.code == root.status.STATUS_CODE_UNSET
        assert receiver.resources[0]["service.name"] == "pdd-gateway"
        assert receiver.resources[0]["service.version"] == "1.2.3"


async def test_engines_work_under_their_legs_spans() -> None:
    """Each engine is sent the span of its own leg as the parent of what it does."""
    async with open_traced() as (stage, receiver, sender):
        await relay(stage)
        await sender.flush()
        for id_ in SMALL:
            legs = {span.span_id.hex() for span in receiver.spans if span.name.endswith(id_)}
            sent = [call.headers["traceparent"].split("-") for call in stage.engines[id_].calls]
            assert {trace for _, trace, _, _ in sent} == {PARENT.trace_id}
            assert {span for _, _, span, _ in sent} == legs


async def test_a_leg_that_fails_is_an_error() -> None:
    """The span of a leg that broke has the error; the answer that went on elsewhere has none."""
    async with open_traced() as (stage, receiver, sender):
        rld = stage.engines["rld1"]
        rld.scripts.append(Script(fault=Cut(2)))
        answer = stage.ask(trace=PARENT)
        running = asyncio.create_task(read(answer))
        await rld.calls_made()
        await rld.idle()
        (await stage.path.opened()).complete()
        await running
        await answer.aclose()
        await sender.flush()
        failed = [span for span in receiver.spans if span.status.code == span.status.STATUS_CODE_ERROR]
        assert [span.name for span in failed] == ["relay rld1"]
        assert "error.type" in read_attributes(failed[0].attributes)


async def test_an_unsampled_trace_goes_on_and_nothing_is_told() -> None:
    """A client that does not want its trace sampled gets no span, and engines its own headers."""
    async with open_traced() as (stage, receiver, sender):
        stage.path.is_instant = True
        unwanted = TraceContext(PARENT.trace_id, PARENT.span_id, flags=0, state="a=1")
        answer = stage.ask(trace=unwanted)
        await read(answer)
        await answer.aclose()
        await sender.flush()
        assert not receiver.bodies
        assert stage.engines["p1"].calls[0].headers["traceparent"] == unwanted.headers()["traceparent"]
        assert stage.engines["p1"].calls[0].headers["tracestate"] == "a=1"


async def test_a_clients_trace_goes_on_where_no_spans_are_made() -> None:
    """Without a receiver the client's own span is what engines get; without a client's they get none."""
    async with open_stage(ids=SMALL) as stage:
        stage.path.is_instant = True
        for trace in (PARENT, None):
            await read(stage.ask(trace=trace))
        await stage.quiet()
        sent = [call.headers.get("traceparent") for call in stage.engines["p1"].calls]
        assert sent == [PARENT.headers()["traceparent"], None]


def open_scripted(answers: Sequence[bool], metrics: Metrics, most_waiting: int = 8) -> tuple[Timelines, SpanSender]:
    """Timelines whose spans go to what takes them or not."""
    left = list(answers)

    def export(spans: Sequence[TracedSpan]) -> bool:
        return left.pop(0)

    sender = SpanSender(export, lambda: None, metrics, most_waiting=most_waiting, unix_s=lambda: 1000.0)
    return Timelines(lambda: 0.0, take=sender.take), sender


async def test_what_finds_no_room_is_dropped_and_counted() -> None:
    """Beyond the bound a request's spans are dropped at once; those that wait are sent."""
    metrics = Metrics()
    timelines, sender = open_scripted([True], metrics, most_waiting=2)
    for number in range(5):
        timelines.open(f"r{number}", "m").end()
    await sender.flush()
    count = metrics.registry.get_sample_value
    assert (count("pdd_spans_sent_total"), count("pdd_spans_dropped_total", {"reason": "full"})) == (2, 3)


async def test_what_is_not_taken_is_dropped_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    """A receiver that refuses loses the spans it was sent, which is said; later ones are sent anew."""
    metrics = Metrics()
    timelines, sender = open_scripted([False, True], metrics)
    timelines.open("r1", "m").end()
    await sender.flush()
    timelines.open("r2", "m").end()
    await sender.aclose()
    count = metrics.registry.get_sample_value
    assert (count("pdd_spans_sent_total"), count("pdd_spans_dropped_total", {"reason": "refused"})) == (1, 1)
    assert "1 spans were not taken" in caplog.text


async def test_a_receiver_that_refuses_takes_nothing() -> None:
    """An answer other than 200 counts as a refusal, and no request waits for it."""
    async with OtlpReceiver() as receiver:
        receiver.status, metrics = 400, Metrics()
        sender = await asyncio.to_thread(open_sender, receiver.url, "1", metrics)
        Timelines(lambda: 0.0, take=sender.take).open("r", "m").end()
        await sender.aclose()
        assert len(receiver.bodies) == 1
        assert metrics.registry.get_sample_value("pdd_spans_dropped_total", {"reason": "refused"}) == 1


@pytest.mark.slow
def test_a_gateway_needs_nothing_of_opentelemetry() -> None:
    """Where OpenTelemetry is not installed a gateway starts as ever, as nothing of it is imported."""
    code = "import sys; sys.modules['opentelemetry'] = None; import gateway.app, gateway.cli.serve"
    assert subprocess.run([sys.executable, "-c", code], timeout=120, check=False).returncode == 0


def test_a_receiver_without_the_extra_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A setting that names a receiver stops the start where the SDK is missing, and says what to install."""
    monkeypatch.setitem(sys.modules, "gateway.telemetry.otlp", None)
    settings = parse_settings({**LEAST, "otlp_endpoint": "http://127.0.0.1:1"})
    with pytest.raises(BadSettings, match=r"otlp_endpoint: .*'\.\[otel\]'"):
        open_spans(settings, Metrics())


def test_the_environment_names_the_receiver(monkeypatch: pytest.MonkeyPatch) -> None:
    """OTEL_EXPORTER_OTLP_ENDPOINT wins over the file; without either nothing is sent."""
    monkeypatch.delenv(VARIABLE, raising=False)
    plain = parse_settings(LEAST)
    named = parse_settings({**LEAST, "otlp_endpoint": "http://file:4318"})
    assert open_spans(plain, Metrics()) is None
    assert find_otlp(named) == "http://file:4318"
    monkeypatch.setenv(VARIABLE, "http://env:4318")
    assert find_otlp(named) == find_otlp(plain) == "http://env:4318"
