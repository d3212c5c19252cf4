"""Traces through the door: from a client's header over a whole gateway to the receiver, engines and upstreams."""

from itertools import pairwise
from pathlib import Path

import pytest

from gateway.redis.client import SharedRedis
from tests.fakes.engine import FakeEngine
from tests.fakes.otlp_receiver import OtlpReceiver, read_attributes
from tests.fakes.upstream import FakeUpstream
from tests.gateway.model_dir import model_dir
from tests.gateway.whole import MODEL, open_whole

__all__ = ["model_dir"]

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
HEADERS = {"traceparent": f"00-{TRACE}-{SPAN}-01"}
MARKER = "zqMarkerqz"


async def test_a_chat_is_told_of_without_its_text(model_dir: Path, shared_redis: SharedRedis) -> None:
    """The setting alone has a gateway send spans: the client's trace goes on, and no word of the prompt is in any."""
    engines = {role: FakeEngine(role, served_model=MODEL) for role in ("P", "MD")}
    async with OtlpReceiver() as receiver:
        async with open_whole(model_dir, shared_redis, engines, otlp_endpoint=receiver.url) as whole:
            body = {"model": MODEL, "messages": [{"role": "user", "content": MARKER * 20}], "max_tokens": 4}
            answer = await whole.client.post("/v1/chat/completions", json=body, headers=HEADERS)
            assert answer.status_code == 200
            await receiver.received(6)
            page = (await whole.client.get("/metrics")).text
        root = receiver.named(f"chat {MODEL}")
        assert (root.trace_id.hex(), root.parent_span_id.hex()) == (TRACE, SPAN)
        told = read_attributes(root.attributes)
        assert told["gen_ai.response.id"] == answer.json()["id"]
        assert told["gen_ai.usage.input_tokens"] == answer.json()["usage"]["prompt_tokens"]
        assert MARKER.encode() not in b"".join(receiver.bodies)
        assert "pdd_spans_sent_total" in page and f'pdd_alignment_gap{{model="{MODEL}"}}' in page
        assert 'pdd_instance_load{instance="MD",role="MD"}' in page
        stages = [receiver.named(name) for name in ("tokenise", "wait", "decide")]
        assert stages[0].start_time_unix_nano == root.start_time_unix_nano
        for before, after in pairwise(stages):
            assert before.end_time_unix_nano == pytest.approx(after.start_time_unix_nano, abs=1000)
        children = [span for span in receiver.spans if span.parent_span_id == root.span_id]
        legs = {span.span_id.hex() for span in children if span not in stages}
        calls = [call for engine in engines.values() for call in engine.calls]
        assert {call.headers["traceparent"].split("-")[2] for call in calls} == legs


async def test_upstreams_work_under_the_requests_span(model_dir: Path, shared_redis: SharedRedis) -> None:
    """What is passed on has the request's own span as parent, and is told of as one span."""
    engines = {"MD": FakeEngine("MD", served_model=MODEL)}
    async with OtlpReceiver() as receiver, FakeUpstream("guest") as upstream:
        upstreams = [{"id": "up1", "url": upstream.url}]
        async with open_whole(
            model_dir, shared_redis, engines, upstreams=upstreams, otlp_endpoint=receiver.url
        ) as whole:
            answer = await whole.client.post("/v1/embeddings", json={"model": "guest", "input": "x"}, headers=HEADERS)
            assert answer.status_code == 200
        root = receiver.named("embeddings guest")
        assert (root.trace_id.hex(), root.parent_span_id.hex()) == (TRACE, SPAN)
        assert dict(upstream.asked[0].headers)[b"traceparent"].decode() == f"00-{TRACE}-{root.span_id.hex()}-01"
