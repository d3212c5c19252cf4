"""Clients that know each token of their answers beforehand."""

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import orjson

from tests.chaos.engine import MODEL
from tests.fakes.script import continuation

ANSWER_TIMEOUT_S = 120.0
RETRY_S = 0.1
RAMP_S = 3.0
"""In which all clients begin."""
LEAST_ID, MOST_ID = 3, 500


@dataclass(slots=True)
class Reply:
    """What a client got. ``error``: what it was told instead of the rest; ``cut``: the connection broke."""

    status: int = 0
    ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    error: str | None = None
    cut: bool = False
    done: bool = False
    first_s: float | None = None
    took_s: float = 0.0


@dataclass(slots=True)
class Tally:
    """What became of requests. ``lost`` and ``doubled``: tokens that a client missed, or got too often, unseen."""

    requests: int = 0
    completed_exactly: int = 0
    failed_visibly: int = 0
    lost_tokens: int = 0
    doubled_tokens: int = 0
    took_s: list[float] = field(default_factory=list)
    first_s: list[float] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    oddities: list[str] = field(default_factory=list)

    def note(self, reply: Reply, expected: list[int]) -> None:
        """Judge a reply."""
        self.requests += 1
        got, whole = reply.ids, reply.done and reply.error is None and reply.finish_reason == "length"
        wrong = got != expected[: len(got)] or (whole and len(got) != len(expected))
        if wrong:
            doubled = max(0, len(got) - len(expected)) + sum(a == b for a, b in itertools.pairwise(got))
            self.doubled_tokens += doubled
            self.lost_tokens += max(1 - doubled, len(expected) - len(got) if whole else 0)
            self.oddities.append(f"{reply.finish_reason} {got} for {expected}")
        elif whole:
            self.completed_exactly += 1
            self.took_s.append(reply.took_s)
            self.first_s.append(reply.first_s or reply.took_s)
        elif reply.error is None and not reply.cut:
            # It ended as if it were whole.
            self.lost_tokens += len(expected) - len(got)
            self.oddities.append(f"silent end after {len(got)}")
        else:
            self.failed_visibly += 1
            self.failures[reply.error or "connection cut"] += 1


async def ask(url: str, key: str, prompt: list[int], tokens: int) -> Reply:
    """Stream one answer. Raises OSError where nobody listens."""
    address, started_s = urlsplit(url), time.monotonic()
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    reply = Reply()
    try:
        body = orjson.dumps(
            {"model": MODEL, "prompt": prompt, "max_tokens": tokens, "temperature": 0}
            | {"stream": True, "return_token_ids": True, "ignore_eos": True}
        )
        head = f"POST /v1/completions HTTP/1.1\r\nHost: chaos\r\nAuthorization: Bearer {key}\r\nConnection: close\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            await read_reply(reader, reply, started_s)
    except (OSError, asyncio.IncompleteReadError):
        reply.cut = True
    except TimeoutError:
        reply.error = "no end in time"
    finally:
        writer.transport.abort()
    reply.took_s = time.monotonic() - started_s
    return reply


async def read_reply(reader: asyncio.StreamReader, reply: Reply, started_s: float) -> None:
    """Read an answer to the end of its body."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    reply.status = int(head.split()[1])
    if reply.status != 200:
        body = await reader.read()
        error = orjson.loads(body[body.index(b"{") :])["error"] if b"{" in body else {}
        reply.error = f"{reply.status} {error.get('code')}"
        return
    pending = b""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        pending += (await reader.readexactly(size + 2))[:-2]
        *events, pending = pending.split(b"\n\n")
        for event in events:
            take_event(event, reply, started_s)


def take_event(event: bytes, reply: Reply, started_s: float) -> None:
    """Take one SSE event."""
    if event == b"data: [DONE]":
        reply.done = True
    elif event.startswith(b"data: "):
        chunk = orjson.loads(event[6:])
        if "error" in chunk:
            reply.error = str(chunk["error"]["code"])
        for choice in chunk.get("choices", ()):
            if choice.get("token_ids"):
                reply.first_s = reply.first_s or time.monotonic() - started_s
                reply.ids += choice["token_ids"]
            reply.finish_reason = choice["finish_reason"] or reply.finish_reason


async def keep_asking(
    urls: Callable[[], list[str]], key: str, seed: int, sizes: tuple[int, int], tally: Tally, is_over: asyncio.Event
) -> None:
    """Ask one request after the other until it is over; where a gateway does not listen, ask the other one."""
    rng = random.Random(seed)
    prompt_tokens, answer_tokens = sizes
    await asyncio.sleep(rng.uniform(0, RAMP_S))
    while not is_over.is_set():
        prompt = [rng.randint(LEAST_ID, MOST_ID) for _ in range(rng.randint(prompt_tokens // 2, prompt_tokens))]
        tokens = rng.randint(answer_tokens * 3 // 4, answer_tokens)
        expected = continuation(prompt, tokens)
        try:
            reply = await ask(rng.choice(urls()), key, prompt, tokens)
        except OSError:
            await asyncio.sleep(RETRY_S)
            continue
        tally.note(reply, expected)
        if reply.error is not None or reply.cut:
            await asyncio.sleep(RETRY_S)
