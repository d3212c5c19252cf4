"""What all of the gateway's applications have in common: exact paths, and errors in OpenAI's shape."""

from collections.abc import Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.errors import GatewayError, encode_error, error_headers, error_messages, failed

JSON = "application/json"
NOTHING = "There is nothing at this path."


def assemble(routes: Sequence[Route]) -> Starlette:
    """Return an application of these routes."""
    app = StraightApp(
        routes=routes,
        middleware=[Middleware(ExactPaths, routes)],
        exception_handlers={
            GatewayError: answer_error,
            HTTPException: answer_http_error,
            Exception: answer_failure,
        },
    )
    # A path that is not exactly a route is no route: nothing is checked at one spelling and served at another.
    app.router.redirect_slashes = False
    return app


class StraightApp(Starlette):
    """Starlette; but an endpoint that is an ASGI callable itself, asked for by just its path and method, is called
    as it is. What Starlette puts around ``send`` costs a token as much as the making of its text.

    Such an endpoint tells its client of all of its errors by itself.
    """

    def __init__(self, *, routes: Sequence[Route], **rest: Any) -> None:
        super().__init__(routes=routes, **rest)
        self._straight: dict[tuple[Any, Any], ASGIApp] = {
            (method, route.path): route.endpoint
            for route in routes
            if route.app is route.endpoint
            for method in route.methods or ()
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint = self._straight.get((scope.get("method"), scope.get("path")))
        if endpoint is None or b"%" in (scope.get("raw_path") or b""):
            await super().__call__(scope, receive, send)
        else:
            await endpoint(scope, receive, send)


class ExactPaths:
    """Knows no path that names a route only once its percent signs are decoded, but for a route's free part."""

    def __init__(self, app: ASGIApp, routes: Sequence[Route]) -> None:
        self._app = app
        self._free = tuple(route.path.partition("{")[0].encode() for route in routes if "{" in route.path)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer 404."""
        raw = scope.get("raw_path") or b""
        if b"%" in raw and not raw.startswith(self._free):
            for message in error_messages(GatewayError(404, NOTHING), []):
                await send(message)
            return
        await self._app(scope, receive, send)


async def answer_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, GatewayError)
    return to_response(error)


async def answer_http_error(request: Request, error: Exception) -> Response:
    """Answer starlette's own errors: unknown paths and methods."""
    assert isinstance(error, HTTPException)
    messages = {404: f"{NOTHING}{find_hint(request)}", 405: "This path does not know this method."}
    message = messages.get(error.status_code, error.detail)
    return to_response(GatewayError(error.status_code, message, headers=dict(error.headers or {})))


def find_hint(request: Request) -> str:
    """Return what a client's path may have meant: with ``/v1`` once, and without a slash at its end."""
    asked = request.url.path.rstrip("/")
    bare = asked
    while bare.startswith("/v1/"):
        bare = bare.removeprefix("/v1")
    known = {route.path for route in request.app.routes if isinstance(route, Route) and "{" not in route.path}
    meant = next((path for path in (asked, bare, f"/v1{bare}") if path in known), None)
    return "" if meant is None else f" {meant} is there."


async def answer_failure(request: Request, error: Exception) -> Response:
    return to_response(failed())


def to_response(error: GatewayError) -> Response:
    return Response(encode_error(error), error.status, error_headers(error), JSON)
