"""An LMCache server's HTTP port on a real socket: its status, and prefetches that the test lets come true."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from tests.fakes.engine import Receive, Send, answer
from tests.fakes.server import AppServer


@dataclass(slots=True)
class Prefetch:
    """One call of the prefetch API; ``found_keys`` None: it is under way."""

    body: dict[str, Any]
    total_keys: int
    found_keys: int | None = None


class FakeCacheServer(AppServer):
    """Serves /status and /cache/prefetches. The store behind it has ``stored`` chunks of any prompt."""

    def __init__(self, *, engines: int = 1, chunk_tokens: int = 16) -> None:
        super().__init__(self._app)
        self.incarnation = 1
        self.engines = engines
        self.chunk_tokens = chunk_tokens
        self.stored = 1_000_000
        self.prefetches: list[Prefetch] = []
        self.status: Any = None
        """What /status says; None: the truth."""
        self.is_pending = False
        """No prefetch comes to its end."""
        self.polls = 0
        self.overrides: Mapping[str, tuple[int, Any]] = {}
        """Answers by verb and path, in place of the truth."""

    @property
    def asked_tokens(self) -> list[int]:
        """How long the prompts of the prefetches were, in order."""
        return [len(prefetch.body["token_ids"]) for prefetch in self.prefetches]

    async def prefetched(self, count: int) -> None:
        """Wait until ``count`` prefetches were asked for."""
        await self._watch.until(lambda: len(self.prefetches) >= count)

    async def polled(self, times: int) -> None:
        """Wait until prefetches were polled so often in all."""
        await self._watch.until(lambda: self.polls >= times)

    async def _app(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = bool(message.get("more_body"))
        verb, path = scope["method"], scope["path"]
        override = self.overrides.get(f"{verb} {path}") or self.overrides.get(verb)
        if override is not None:
            await answer(send, *override)
        elif (verb, path) == ("GET", "/status"):
            await answer(send, 200, self._status() if self.status is None else self.status)
        elif (verb, path) == ("POST", "/cache/prefetches"):
            await answer(send, 202, self._submit(orjson.loads(body)))
        elif path.startswith("/cache/prefetches/"):
            await self._poll(path.rpartition("/")[2], send)
        else:
            await answer(send, 404, {"detail": "Not Found"})

    def _status(self) -> dict[str, Any]:
        ids = list(range(self.engines))
        events = {"enabled": False, "incarnation": self.incarnation}
        return {
            "is_healthy": True,
            "kv_events": events,
            "registered_gpu_ids": [],
            "registered_non_cuda_instance_ids": ids,
        }

    def _submit(self, body: dict[str, Any]) -> dict[str, Any]:
        chunks = len(body["token_ids"]) // self.chunk_tokens
        if not chunks:
            return {"chunks": 0, "status": "noop"}
        self.prefetches.append(Prefetch(body, chunks))
        self._watch.changed()
        return {"request_id": f"{len(self.prefetches) - 1:x}", "chunks": chunks, "status": "submitted"}

    async def _poll(self, request_id: str, send: Send) -> None:
        prefetch = self.prefetches[int(request_id, 16)]
        self.polls += 1
        self._watch.changed()
        if self.is_pending:
            await answer(send, 200, {"request_id": request_id, "status": "pending"})
            return
        prefetch.found_keys = min(prefetch.total_keys, self.stored)
        done = {"found_keys": prefetch.found_keys, "total_keys": prefetch.total_keys}
        await answer(send, 200, {"request_id": request_id, "status": "completed"} | done)
