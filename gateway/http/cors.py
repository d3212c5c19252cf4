"""Browsers' pages of other origins: whether they may ask the API, by a list of origins in the settings.

A preflight comes without a key and is answered before anybody looks for one. Answers and errors alike carry the
headers, or a page could not read why it was refused. Cookies are of no use here, so credentials are not allowed.
"""

import re
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

PATHS = ("/v1/", "/tokenize", "/detokenize", "/health", "/version")
"""What pages may ask; never what is the operator's."""
METHODS = b"GET, POST, OPTIONS"
SHOWN_HEADERS = b"x-request-id, x-pdd-plan, x-pdd-reason, retry-after"
MAX_AGE_S = b"600"
FIELD_NAMES = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~ ,-]{1,2000}")


class Cors:
    """Adds what browsers want to hear. ``origins``: those that may ask, ``*`` for all."""

    def __init__(self, app: ASGIApp, origins: Sequence[str]) -> None:
        self._app = app
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(PATHS):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        allowed = self._allow(origin)
        if allowed and scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
            await self._answer_preflight(allowed, headers, send)
            return

        async def send_allowed(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *allowed, (b"vary", b"Origin")]}
            await send(message)

        await self._app(scope, receive, send_allowed)

    def _allow(self, origin: str | None) -> list[tuple[bytes, bytes]]:
        """Return the headers for a page of this origin; none where it may not ask."""
        if origin is None or not ({"*", origin} & self._origins):
            return []
        return [
            (b"access-control-allow-origin", origin.encode("latin-1")),
            (b"access-control-expose-headers", SHOWN_HEADERS),
        ]

    async def _answer_preflight(self, allowed: list[tuple[bytes, bytes]], headers: Headers, send: Send) -> None:
        asked = headers.get("access-control-request-headers", "")
        lines = [
            *allowed,
            (b"access-control-allow-methods", METHODS),
            (b"access-control-max-age", MAX_AGE_S),
            (b"vary", b"Origin, Access-Control-Request-Headers"),
        ]
        if FIELD_NAMES.fullmatch(asked):
            lines.append((b"access-control-allow-headers", asked.encode("latin-1")))
        await send({"type": "http.response.start", "status": 204, "headers": lines})
        await send({"type": "http.response.body", "body": b""})
