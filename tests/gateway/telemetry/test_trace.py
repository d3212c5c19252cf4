"""Anonymous lines of requests: equal prefixes are seen, nothing else is, and what is kept is bounded."""

import asyncio
import json
from pathlib import Path

import pytest

from gateway.redis.client import SharedRedis
from gateway.telemetry import trace
from gateway.telemetry.trace import STREAM, TracedRequest, TraceNames, Tracer, read_rows
from tests.valkey import make_away

SECRET = b"0123456789abcdef0123"
PROMPT = list(range(1_000_000, 1_001_300))
"""Two blocks and a part of a third."""


def make_tracer(file: Path | None, most_rows: int = 100, redis: SharedRedis | None = None) -> Tracer:
    """A tracer at second 1,000."""
    return Tracer((redis or make_away()).client("trace", 2.0), SECRET, file, most_rows, lambda: 1000.0)


async def read_lines(file: Path) -> list[bytes]:
    """Read a file beside the event loop."""
    return (await asyncio.to_thread(file.read_bytes)).splitlines()


def begin(tracer: Tracer, prompt: list[int] = PROMPT) -> TracedRequest:
    """A relayed request of a tenant's session."""
    return tracer.begin("m", "acme", "relay", prompt, None, "talk")


def test_equal_prefixes_have_equal_names() -> None:
    """Blocks are named up to the first difference, by the key, and apart by salt."""
    names = TraceNames(SECRET)
    whole, changed = names.of_tokens(PROMPT, None), names.of_tokens([*PROMPT[:600], 7, *PROMPT[601:]], None)
    assert len(whole) == 3
    assert [a == b for a, b in zip(whole, changed, strict=True)] == [True, False, False]
    assert names.of_tokens(PROMPT[:512], None) == whole[:1]
    assert not set(whole) & set(names.of_tokens(PROMPT, "salt"))
    assert not set(whole) & set(TraceNames(b"another secret").of_tokens(PROMPT, None))
    text = b"x" * 5000
    assert names.of_text(text, None)[:2] == names.of_text(text[:4096], None)


async def test_a_line_has_no_token_and_no_name(tmp_path: Path) -> None:
    """Lengths, times and hashes are all that is written; the tenant and the session are hashes, too."""
    file = tmp_path / "trace.jsonl"
    tracer = make_tracer(file)
    await tracer.start()
    traced = begin(tracer)
    traced.end(50, 0.25, 0.0312345, 2.0)
    traced.end(99, None, None, 9.0)
    await tracer.aclose()
    (line,) = await read_lines(file)
    row = json.loads(line)
    assert {name: row[name] for name in ("timestamp", "input_length", "output_length", "plan", "ttft_s", "gap_s")} == {
        "timestamp": 1_000_000,
        "input_length": 1300,
        "output_length": 50,
        "plan": "relay",
        "ttft_s": 0.25,
        "gap_s": 0.0312,
    }
    rest = json.dumps({name: value for name, value in row.items() if name != "timestamp"})
    assert not any(str(token) in rest for token in PROMPT)
    assert "acme" not in rest
    assert "talk" not in rest


async def test_a_passed_request_counts_what_the_server_told(tmp_path: Path) -> None:
    """Where only text is known its blocks are of bytes, and the length is the server's."""
    file = tmp_path / "trace.jsonl"
    tracer = make_tracer(file)
    tracer.begin_text("guest", "acme", b"x" * 10_000, None).end(7, None, None, 1.0, prompt_tokens=900)
    await tracer.flush()
    (line,) = await read_lines(file)
    row = json.loads(line)
    assert (row["input_length"], row["output_length"], len(row["hash_ids"])) == (900, 7, 2)


async def test_a_file_is_bounded(tmp_path: Path) -> None:
    """A file that is full takes no more, also after a restart."""
    file = tmp_path / "trace.jsonl"
    for _ in range(2):
        tracer = make_tracer(file, most_rows=3)
        for _ in range(2):
            begin(tracer).end(1, None, None, 1.0)
        await tracer.flush()
    assert len(await read_lines(file)) == 3
    assert tracer.dropped == 1


async def test_memory_is_bounded_while_redis_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines wait for Redis, up to a bound; a process without a secret goes on with a key of its own."""
    monkeypatch.setattr(trace, "MOST_WAITING", 2)
    tracer = Tracer(make_away().client("trace", 2.0), None, None, 100)
    await tracer.start()
    for _ in range(3):
        begin(tracer).end(1, None, None, 1.0)
    await tracer.aclose()
    assert tracer.dropped == 1


@pytest.mark.slow
async def test_lines_in_redis_are_shared(shared_redis: SharedRedis) -> None:
    """Two processes without a secret name equal blocks alike; the stream can be read back from a time on."""
    client = shared_redis.client("trace", 5.0)
    for _ in range(2):
        tracer = Tracer(client, None, None, 100)
        await tracer.start()
        begin(tracer).end(5, 0.1, 0.0, 1.0)
        await tracer.aclose()
    one, other = await read_rows(client, 0)
    assert one.hash_ids == other.hash_ids
    assert one.tenant == other.tenant
    assert await read_rows(client, 10**14) == []
    assert await client.commands.xlen(STREAM) == 2
