"""The operator's pages: readiness for everybody, the rest behind a admin_auth."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.auth.admin import AdminAuth
from gateway.errors import GatewayError
from gateway.http.routing import JSON
from gateway.telemetry.siblings import METRICS, REQUESTS, TIMELINE, Siblings, merge_pages
from gateway.version import VERSION

USUAL_REQUESTS, MOST_REQUESTS = 50, 1000

Handler = Callable[[Request], Awaitable[Response]]


async def _show_nothing() -> Mapping[str, Any]:
    return {}


@dataclass(frozen=True, slots=True)
class Pages:
    """What the operator's pages show."""

    find_missing: Callable[[], Sequence[str]]
    """Return what is not ready, one line each; nothing when requests can be served."""
    find_timeline: Callable[[str], Mapping[str, Any] | None]
    """Return a request's timeline as JSON values."""
    render_metrics: Callable[[], tuple[bytes, str]]
    """Return the metrics page and its content type."""
    show_rules: Callable[[], Awaitable[Mapping[str, Any]]] = field(default=_show_nothing)
    """Return which rules are in force here, and what other processes say, as JSON values."""
    list_requests: Callable[[int], Sequence[Mapping[str, Any]]] = field(default=lambda most: [])
    """Return the newest requests in short, newest first, as JSON values."""
    find_degraded: Callable[[], Sequence[str]] = field(default=list)
    """Return what is not as it should be though requests can be served, one line each."""
    siblings: Siblings | None = None
    """Other workers at the same address; what is shown is theirs, too."""


def probe_routes(pages: Pages, admin_auth: AdminAuth) -> list[Route]:
    """Return ``/health`` and ``/ready``; what is amiss, which names engines, is told to the operator."""

    async def show_health(request: Request) -> Response:
        return Response(b'{"status":"ok"}', media_type=JSON)

    async def show_version(request: Request) -> Response:
        return Response(msgspec.json.encode({"version": VERSION}), media_type=JSON)

    async def show_ready(request: Request) -> Response:
        missing = list(pages.find_missing())
        answer: dict[str, Any] = {"ready": not missing}
        if admin_auth.lets_in(request):
            answer["missing"] = missing
            if degraded := list(pages.find_degraded()):
                answer["degraded"] = degraded
        return Response(msgspec.json.encode(answer), status_code=503 if missing else 200, media_type=JSON)

    return [
        Route("/health", show_health, methods=["GET"]),
        Route("/ready", show_ready, methods=["GET"]),
        Route("/version", show_version, methods=["GET"]),
    ]


async def _list_all(pages: Pages, most: int) -> Sequence[Mapping[str, Any]]:
    """Return the newest requests of all workers."""
    found = list(pages.list_requests(most))
    if pages.siblings is None:
        return found
    for theirs in (await pages.siblings.ask(f"{REQUESTS}{most}")).values():
        found += msgspec.json.decode(theirs)
    return sorted(found, key=itemgetter("age_s"))[:most]


def admin_routes(pages: Pages, admin_auth: AdminAuth) -> list[Route]:
    """Return ``/metrics`` and ``/admin/*``; nothing where nobody may see them."""
    if not admin_auth.is_there:
        return []

    async def show_metrics(request: Request) -> Response:
        page, content_type = pages.render_metrics()
        if (siblings := pages.siblings) is not None:
            page = merge_pages({siblings.number: page, **await siblings.ask(METRICS)})
        return Response(page, headers={"content-type": content_type})

    async def show_request(request: Request) -> Response:
        request_id = request.path_params["request_id"]
        timeline = pages.find_timeline(request_id)
        if timeline is not None:
            return Response(msgspec.json.encode(timeline), media_type=JSON)
        if pages.siblings is not None:
            for theirs in (await pages.siblings.ask(TIMELINE + request_id)).values():
                return Response(theirs, media_type=JSON)
        raise GatewayError(404, "No request with this id is remembered.", code="request_not_found")

    async def show_requests(request: Request) -> Response:
        asked = request.query_params.get("limit", str(USUAL_REQUESTS))
        if not asked.isdecimal() or not 1 <= int(asked[:9]) <= MOST_REQUESTS:
            raise GatewayError(400, f"limit must be from 1 to {MOST_REQUESTS}.", code="invalid_value", param="limit")
        return Response(msgspec.json.encode({"requests": await _list_all(pages, int(asked))}), media_type=JSON)

    async def show_rules(request: Request) -> Response:
        return Response(msgspec.json.encode(await pages.show_rules()), media_type=JSON)

    def behind(handler: Handler) -> Handler:
        async def checked(request: Request) -> Response:
            admin_auth.check(request)
            return await handler(request)

        return checked

    return [
        Route("/metrics", behind(show_metrics), methods=["GET"]),
        Route("/admin/requests", behind(show_requests), methods=["GET"]),
        Route("/admin/requests/{request_id}", behind(show_request), methods=["GET"]),
        Route("/admin/rules", behind(show_rules), methods=["GET"]),
    ]
