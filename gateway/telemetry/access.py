"""The access log: one JSON line for each request, with no text, no key and no query of the client's."""

import json
import logging
import sys
import time
from collections.abc import Callable
from logging.handlers import QueueHandler, QueueListener, WatchedFileHandler
from queue import SimpleQueue
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

TENANT = "pdd.tenant"
"""Where in a request's scope whoever checks its key leaves the tenant."""
SHOWN_PATH_CHARACTERS = 200


class AccessWriter:
    """Writes lines to a file, or to standard output (``-``), in a thread of its own."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._queue: SimpleQueue[Any] = SimpleQueue()
        self._logger = logging.Logger("access")
        self._logger.addHandler(QueueHandler(self._queue))
        self._end: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Open the file. Raises OSError."""
        is_file = self._target != "-"
        handler: logging.Handler = WatchedFileHandler(self._target) if is_file else logging.StreamHandler(sys.stdout)
        listener = QueueListener(self._queue, handler)
        listener.start()

        def end() -> None:
            listener.stop()
            handler.close()

        self._end = end

    def write(self, line: dict[str, Any]) -> None:
        """Add one line."""
        self._logger.info("%s", json.dumps(line))

    def close(self) -> None:
        """Write what is waiting, and end."""
        self._end()


class AccessLog:
    """Tells of every request once it is over."""

    def __init__(self, app: ASGIApp, writer: AccessWriter) -> None:
        self._app = app
        self._writer = writer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started_s = time.monotonic()
        told: dict[str, Any] = {"status": None, "first_byte_s": None, "bytes": 0, "complete": False}

        async def note(message: Message) -> None:
            await send(message)
            if message["type"] == "http.response.start":
                told["status"] = message["status"]
                told["first_byte_s"] = round(time.monotonic() - started_s, 4)
                told["request_id"] = _find(message, b"x-request-id")
            elif message["type"] == "http.response.body":
                told["bytes"] += len(message.get("body", b""))
                told["complete"] = not message.get("more_body", False)

        try:
            await self._app(scope, receive, note)
        finally:
            client = scope.get("client")
            self._writer.write(
                {
                    "time": round(time.time(), 3),
                    "client": client[0] if client else None,
                    "tenant": scope.get(TENANT),
                    "method": scope["method"],
                    "path": scope["path"][:SHOWN_PATH_CHARACTERS],
                    **told,
                    "took_s": round(time.monotonic() - started_s, 4),
                }
            )


def _find(message: Message, name: bytes) -> str | None:
    return next((value.decode("latin-1") for key, value in message.get("headers", ()) if key == name), None)
