"""A scripted engine as a process of its own, with a KV store beside it as LMCache would use it.

Its tokens depend on all that came before them, so a lost or doubled one shows. ``python -m tests.chaos.engine --help``
"""

import argparse
import asyncio
import os
from collections.abc import Sequence
from typing import Any

import redis.asyncio
import redis.exceptions
import uvloop

from backends.kv.bridge.keys import DIALECTS, KeyRequest
from backends.transport.lifetime import die_with_parent
from tests.fakes.engine import Call, FakeEngine, Receive, Send, State
from tests.fakes.gates import HoldGate
from tests.fakes.script import Cut, Refuse, Script

MODEL = "demo"
CHUNK_TOKENS = 64
CHUNK_BYTES = 16 << 10
CONTEXT_TOKENS = 4096
POISON_500, POISON_CUT = 501, 502
"""First ids of prompts that make this engine fail."""
METADATA = bytes.fromhex("00000400010000000400000002000000040000004000000080000000")
STORE_TIMEOUT_S = 2.0


class Pace(HoldGate):
    """Lets a chunk pass after a time."""

    def __init__(self, wait_s: float) -> None:
        super().__init__()
        self._wait_s = wait_s

    async def hold(self) -> None:
        await asyncio.sleep(self._wait_s)


def judge(prompt: Sequence[int]) -> Script | None:
    """Fail on poison."""
    faults: dict[int, Refuse | Cut] = {POISON_500: Refuse(500), POISON_CUT: Cut(None)}
    return Script(fault=faults[prompt[0]]) if prompt and prompt[0] in faults else None


class StoredEngine(FakeEngine):
    """P writes its prompts' chunks to the store before it answers; the others tell how much of a prompt is there."""

    def __init__(self, role: str, store_url: str, chunk_s: float, chunk_ids: int) -> None:
        super().__init__(role.lower(), served_model=MODEL, max_model_len=CONTEXT_TOKENS)
        self._role = role
        self._store = redis.asyncio.Redis.from_url(store_url, socket_timeout=STORE_TIMEOUT_S)
        self._pace = Pace(chunk_s)
        self._chunk_ids = chunk_ids
        self.judge = judge

    async def _completions(self, scope: dict[str, Any], body: bytes, receive: Receive, send: Send) -> None:
        try:
            await super()._completions(scope, body, receive, send)
        finally:
            self.calls = [call for call in self.calls if call.state == "running"]

    async def _answer(self, call: Call, send: Send) -> State:
        cached_tokens = 0
        try:
            cached_tokens = await self._use_store(call)
        except redis.exceptions.RedisError:
            pass  # an engine goes on without its store
        self.scripts.append(Script(chunks=(self._chunk_ids,), step=self._pace, cached_tokens=cached_tokens))
        return await super()._answer(call, send)

    async def _use_store(self, call: Call) -> int:
        wanted = KeyRequest(MODEL, call.prompt, CHUNK_TOKENS, call.body.get("cache_salt"))
        keys = DIALECTS["lmcache"].chunk_keys(wanted)
        if self._role == "P":
            for key in keys:
                await self._store.set(key + "kv_bytes", os.urandom(CHUNK_BYTES))
                await self._store.set(key + "metadata", METADATA)
            return 0
        found = 0
        for key in keys:
            if not await self._store.exists(key + "metadata"):
                break
            found += 1
        return found * CHUNK_TOKENS


async def serve(args: argparse.Namespace) -> None:
    """Serve for ever."""
    engine = StoredEngine(args.role, args.store, args.chunk_s, args.chunk_ids)
    engine.port = args.port
    engine.boot_time = float(os.getpid())
    await engine.start()
    print(f"listening on {engine.url}", flush=True)
    await asyncio.Event().wait()


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--role", required=True, choices=["P", "RLD", "MD"])
    parser.add_argument("--port", required=True, type=int)
    parser.add_argument("--store", required=True)
    parser.add_argument("--chunk-s", required=True, type=float)
    parser.add_argument("--chunk-ids", required=True, type=int)
    args = parser.parse_args()
    die_with_parent(parent_pid=os.getppid())
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(args))


if __name__ == "__main__":
    main()
