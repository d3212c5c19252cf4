"""The page's event stream: the whole state once, then what changed, at most twice a second.

Nothing is queued for a reader: whoever reads slowly is sent the newest state when it has taken the last one.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
from starlette.requests import HTTPConnection
from starlette.types import Receive, Scope, Send

from gateway.auth.admin import AdminAuth
from gateway.errors import GatewayError, error_messages
from gateway.http.edge import cut_connection
from gateway.operator.view import OperatorView, State

INTERVAL_S = 0.5
TAKE_TIMEOUT_S = 30.0
"""A reader that takes nothing for so long is given up."""
SIGN_OF_LIFE_EVERY = 20
"""Looks without any change after which a comment is sent, so that no proxy takes the stream for dead."""
MOST_READERS = 32


def find_changes(old: State, new: State) -> State:
    """Return what of ``new`` differs, by section and id; None stands for what is gone."""
    changes: State = {}
    for name, section in new.items():
        before = old.get(name, {})
        changed: dict[str, Any] = {id_: value for id_, value in section.items() if before.get(id_) != value}
        changed |= {id_: None for id_ in before if id_ not in section}
        if changed:
            changes[name] = changed
    return changes


class StateStream:
    """``GET /admin/events`` as server-sent events: one ``state``, then a ``change`` whenever there is one.

    Both hold ``sections`` and ``points``: all of them at first, then the new ones.
    """

    def __init__(self, view: OperatorView, admin_auth: AdminAuth, is_over: Callable[[], bool]) -> None:
        self._view = view
        self._admin_auth = admin_auth
        self._is_over = is_over
        self._readers = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one reader until it leaves or the gateway ends."""
        try:
            self._admin_auth.check(HTTPConnection(scope))
            if self._readers >= MOST_READERS:
                raise GatewayError(503, f"There are {MOST_READERS} readers already.", retry_after_s=10.0)
        except GatewayError as error:
            for message in error_messages(error, []):
                await send(message)
            return
        self._readers += 1
        try:
            await self._stream(receive, send)
        except TimeoutError:
            cut_connection(scope)
        finally:
            self._readers -= 1

    async def _stream(self, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        left = asyncio.create_task(_wait_until_left(receive))
        try:
            await self._tell(send, left)
        finally:
            left.cancel()
            with suppress(asyncio.CancelledError):
                await left

    async def _tell(self, send: Send, left: asyncio.Task[None]) -> None:
        told: State = {}
        points, quiet = 0, 0
        while not left.done():
            await self._view.refresh()
            state, minute = self._view.state(), self._view.minute
            changes = find_changes(told, state)
            new = min(minute.taken - points, len(minute.points))
            if changes or new:
                body = {"sections": changes, "points": list(minute.points)[len(minute.points) - new :]}
                kind = b"change" if told else b"state"
                await _send_event(send, b"event: " + kind + b"\ndata: " + msgspec.json.encode(body) + b"\n\n")
                quiet = 0
            elif (quiet := quiet + 1) % SIGN_OF_LIFE_EVERY == 0:
                await _send_event(send, b": quiet\n\n")
            told, points = state, minute.taken
            if self._is_over():
                break
            await asyncio.wait([left], timeout=INTERVAL_S)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _send_event(send: Send, event: bytes) -> None:
    async with asyncio.timeout(TAKE_TIMEOUT_S):
        await send({"type": "http.response.body", "body": event, "more_body": True})


async def _wait_until_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
