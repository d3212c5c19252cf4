"""Requests as anonymous lines for ``pdd simulate`` and ``pdd plan``: when, how long, which blocks, how it went.

No token and no text is in a line. Blocks of 512 tokens are named by a keyed hash of them and all before, so that equal
prefixes have equal names within one deployment and none outside; so are tenants and conversations. Lines go to a
bounded stream in Redis or to a bounded file, in the background: a line that finds no room in memory is dropped.
"""

import asyncio
import logging
import time
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from secrets import token_bytes
from typing import Any

import msgspec

from gateway.errors import reason_of
from gateway.redis.client import AWAY, RedisClient
from gateway.tasks import end_task, run_every

log = logging.getLogger(__name__)

STREAM, KEY = "pdd:trace", "pdd:trace:key"
BLOCK_TOKENS = 512
"""As in Mooncake's traces."""
BLOCK_TEXT_BYTES = 2_048
"""The same where only the text is known, at four bytes a token."""
NAME_BYTES = 8
MOST_WAITING = 2_000
FIELD = "row"


class TraceLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """One request, in Mooncake's fields and ours. ``timestamp``: milliseconds since 1970."""

    timestamp: int
    input_length: int
    output_length: int
    hash_ids: list[str]
    tenant: str
    model: str
    plan: str
    ttft_s: float | None = None
    gap_s: float | None = None
    """Longest silence inside the answer."""
    total_s: float | None = None
    session: str | None = None


class TraceNames:
    """Names for what must not be told, by a key that only this deployment has."""

    def __init__(self, key: bytes) -> None:
        self._key = blake2b(key, person=b"pdd trace").digest()

    def of(self, text: str) -> str:
        """Name a tenant or a conversation."""
        return self._hash(text.encode(), b"name").hex()

    def of_tokens(self, ids: Sequence[int], salt: str | None) -> list[str]:
        """Name the blocks of a prompt; the last may be a part of one. Other salts make other names."""
        return self._chain(array("q", ids).tobytes(), BLOCK_TOKENS * 8, salt or "")

    def of_text(self, text: bytes, salt: str | None) -> list[str]:
        """The same of a prompt that nobody tokenised here."""
        return self._chain(text, BLOCK_TEXT_BYTES, salt or "")

    def _chain(self, data: bytes, size: int, salt: str) -> list[str]:
        last, names = self._hash(salt.encode(), b"salt"), []
        for start in range(0, len(data), size):
            last = self._hash(last + data[start : start + size], b"block")
            names.append(last.hex())
        return names

    def _hash(self, data: bytes, person: bytes) -> bytes:
        return blake2b(data, digest_size=NAME_BYTES, key=self._key[:32], person=person).digest()


@dataclass(slots=True)
class TracedRequest:
    """One request that will be a line once it has ended."""

    tracer: "Tracer"
    row: TraceLine
    told: bool = False

    def end(
        self,
        output_tokens: int,
        ttft_s: float | None,
        gap_s: float | None,
        total_s: float,
        prompt_tokens: int | None = None,
    ) -> None:
        """It has ended; the first time counts. ``prompt_tokens``: where that was not known before."""
        if self.told:
            return
        self.told = True
        length = self.row.input_length if prompt_tokens is None else prompt_tokens
        self.tracer.note(
            msgspec.structs.replace(
                self.row,
                input_length=length,
                output_length=output_tokens,
                hash_ids=self.row.hash_ids[: -(-length // BLOCK_TOKENS)],
                ttft_s=_round(ttft_s),
                gap_s=_round(gap_s),
                total_s=_round(total_s),
            )
        )


def _round(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 4)


class Tracer:
    """Takes lines and writes them about once a second. ``file`` None: to Redis. ``most_rows`` are kept.

    A file that is full takes no more; a stream drops its oldest lines. ``secret`` None: the key is one that all
    processes share in Redis.
    """

    def __init__(
        self,
        redis: RedisClient,
        secret: bytes | None,
        file: Path | None,
        most_rows: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.dropped = 0
        self._names = TraceNames(secret or token_bytes(32))
        self._has_secret = secret is not None
        self._clock = clock
        self._redis = redis
        self._file = file
        self._most_rows = most_rows
        self._waiting: deque[bytes] = deque()
        self._written: int | None = None
        self._task: asyncio.Task[None] | None = None

    def begin(
        self, model: str, tenant: str, plan: str, prompt: Sequence[int], salt: str | None, session: str | None
    ) -> TracedRequest:
        """A request has come, with a prompt of token ids."""
        return self._begin(model, tenant, plan, len(prompt), self._names.of_tokens(prompt, salt), session)

    def begin_text(self, model: str, tenant: str, text: bytes, salt: str | None) -> TracedRequest:
        """A request is passed on; of its prompt only the text is known."""
        length = len(text) * BLOCK_TOKENS // BLOCK_TEXT_BYTES
        return self._begin(model, tenant, "passed_on", length, self._names.of_text(text, salt), None)

    def _begin(
        self, model: str, tenant: str, plan: str, length: int, blocks: list[str], session: str | None
    ) -> TracedRequest:
        name = self._names.of
        known = None if session is None else name(f"{tenant} {session}")
        row = TraceLine(int(self._clock() * 1000), length, 0, blocks, name(tenant), model, plan, session=known)
        return TracedRequest(self, row)

    def note(self, row: TraceLine) -> None:
        """Take a line."""
        if len(self._waiting) >= MOST_WAITING:
            self.dropped += 1
            return
        self._waiting.append(msgspec.json.encode(row))

    async def start(self) -> None:
        """Write in the background from here on."""
        if not self._has_secret:
            await self._share_key()
        self._task = asyncio.create_task(run_every(1.0, self.flush))

    async def aclose(self) -> None:
        """Write what is left, if it can be written, and end."""
        await end_task(self._task)
        await self.flush()

    async def _share_key(self) -> None:
        try:
            async with self._redis.limit():
                await self._redis.commands.set(KEY, token_bytes(32), nx=True)
                key = await self._redis.commands.get(KEY)
        except AWAY as error:
            log.warning("trace: the key is this process's own, as Redis is away: %s", reason_of(error))
            return
        if isinstance(key, bytes):
            self._names = TraceNames(key)

    async def flush(self) -> None:
        """Write what waits; what Redis does not take goes on waiting."""
        if not self._waiting:
            return
        rows = list(self._waiting)
        try:
            if self._file is None:
                await self._send(rows)
            else:
                await asyncio.to_thread(self._append, self._file, rows)
        except AWAY as error:
            log.warning("trace: %d lines wait: %s", len(rows), reason_of(error))
            return
        for _ in rows:
            self._waiting.popleft()

    async def _send(self, rows: list[bytes]) -> None:
        async with self._redis.limit():
            pipe = self._redis.commands.pipeline(transaction=False)
            for row in rows:
                pipe.xadd(STREAM, {FIELD: row}, maxlen=self._most_rows, approximate=True)
            await pipe.execute()

    def _append(self, file: Path, rows: list[bytes]) -> None:
        if self._written is None:
            self._written = file.read_bytes().count(b"\n") if file.exists() else 0
        kept = rows[: max(0, self._most_rows - self._written)]
        if kept:
            with file.open("ab") as out:
                out.write(b"\n".join(kept) + b"\n")
        self._written += len(kept)
        self.dropped += len(rows) - len(kept)


async def read_rows(redis: RedisClient, since_ms: int) -> list[TraceLine]:
    """Return the lines that a stream has, from a time on."""
    found: Any = await redis.commands.xrange(STREAM, min=str(since_ms))
    return [msgspec.json.decode(fields[FIELD.encode()], type=TraceLine) for _, fields in found]
