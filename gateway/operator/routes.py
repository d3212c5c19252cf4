"""The routes of the operator's page: its files, its event stream, and what it asks and changes."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.api.admin import Handler
from gateway.auth.admin import AdminAuth
from gateway.config.document_store import BadDocument, Conflict, Document, DocumentStore
from gateway.config.fleet_settings import BadSettings
from gateway.config.rulebook import RULES
from gateway.config.settings import Settings
from gateway.errors import GatewayError
from gateway.http.body import JsonObject, parse_object, read_body
from gateway.http.proxies import is_loopback
from gateway.http.routing import JSON
from gateway.operator.assets import read_assets
from gateway.operator.events import StateStream
from gateway.operator.explain import TENANT, Explainer
from gateway.operator.fleet import TopologyBody, drain, put_body, undrain
from gateway.operator.fleet import read_body as read_topology_body
from gateway.operator.rules import check_change, rehearse
from gateway.operator.view import OperatorView
from gateway.redis.client import AWAY
from gateway.relay.router import Router
from gateway.telemetry.timeline import Timelines
from policies.explain import explain_decision
from policies.rule_documents import document_schema

AUTHOR = "operator page"
MOST_BODY_BYTES, BODY_TIMEOUT_S = 4 << 20, 30.0
MOST_REHEARSED = 500

Edit = Callable[[Mapping[str, Any], tuple[str, ...]], TopologyBody]


@dataclass(frozen=True, slots=True)
class Operator:
    """What the page can show and do. ``settings``: the configuration, under all documents."""

    settings: Settings
    view: OperatorView
    router: Router
    timelines: Timelines
    explainer: Explainer
    store: DocumentStore
    is_draining: Callable[[], bool]

    async def edit_fleet(self, edit: Edit, id_: str) -> Document:
        """Change the topology document for one engine. Raises GatewayError."""
        if all(one.spec.id != id_ for one in self.router.pools.instances):
            raise GatewayError(404, f"There is no engine {id_}.", code="instance_not_found")
        try:
            async with self.store.redis.limit():
                body, version = await read_topology_body(self.store)
                return await put_body(self.store, self.settings, edit(body, (id_,)), AUTHOR, version)
        except BadSettings as error:
            raise GatewayError(400, f"Nothing was changed: {error}", code="topology_refused") from None
        except (Conflict, *AWAY) as error:
            raise to_gateway_error(error) from None

    async def list_rules(self) -> dict[str, Any]:
        """Return the stored rule documents with their bodies, and what the configuration has under them."""
        async with self.store.redis.limit():
            documents = await self.store.all_of(RULES)
        return {
            "base": msgspec.to_builtins(self.settings.rules),
            "documents": [_spell_document(one) for one in documents],
        }

    async def check_rules(self, name: str, value: Any) -> dict[str, Any]:
        """Check a body together with all documents, and say whose recent plans would change. Raises GatewayError."""
        async with self.store.redis.limit():
            documents = await self.store.all_of(RULES)
        book = check_change(self.settings.rules, documents, name, value)
        recent = self.timelines.recent(MOST_REHEARSED)
        changed = [asdict(one) for one in rehearse(self.router, recent, book)]
        return {"valid": True, "looked_at": sum(one.decision is not None for one in recent), "changed": changed}

    async def write_rules(self, name: str, value: Any, expected: int | None) -> Document:
        """Check a body and put it in force; None deletes. Raises GatewayError."""
        await self.check_rules(name, value)
        async with self.store.redis.limit():
            if value is None:
                return await self.store.delete(RULES, name, author=AUTHOR, expected_version=expected)
            return await self.store.put(RULES, name, value, author=AUTHOR, expected_version=expected)


def operator_routes(operator: Operator, admin_auth: AdminAuth) -> list[Route]:
    """Return the page's routes; nothing where nobody may see the operator's pages."""
    if not admin_auth.is_there:
        return []
    return [*_page_routes(admin_auth), *_look_routes(operator, admin_auth), *_change_routes(operator, admin_auth)]


def _page_routes(admin_auth: AdminAuth) -> list[Route]:
    assets = read_assets()

    async def show(request: Request) -> Response:
        admin_auth.check(request)
        asset = assets.get(request.path_params.get("name", "index.html"))
        if asset is None:
            raise GatewayError(404, "The page has no such file.")
        return asset.answer(request)

    return [Route("/ui", show, methods=["GET"]), Route("/ui/{name}", show, methods=["GET"])]


def _look_routes(operator: Operator, admin_auth: AdminAuth) -> list[Route]:
    async def show_state(request: Request) -> Response:
        await operator.view.refresh()
        return _json({"sections": operator.view.state(), "points": list(operator.view.minute.points)})

    async def show_decision(request: Request) -> Response:
        found = operator.timelines.find(request.path_params["request_id"])
        decision = found[0].decision if found else None
        if decision is None:
            raise GatewayError(404, "No decision of this request is remembered.", code="request_not_found")
        return _json(explain_decision(decision))

    async def list_rules(request: Request) -> Response:
        return _json(await operator.list_rules())

    async def show_history(request: Request) -> Response:
        async with operator.store.redis.limit():
            history = await operator.store.history(RULES, request.path_params["name"])
        return _json({"versions": [_spell_document(one) for one in history]})

    async def show_schema(request: Request) -> Response:
        return _json(document_schema())

    events = StateStream(operator.view, admin_auth, operator.is_draining)
    pages: dict[str, Handler] = {
        "/admin/state": show_state,
        "/admin/requests/{request_id}/decision": show_decision,
        "/admin/rules/schema": show_schema,
        "/admin/rules/documents": list_rules,
        "/admin/rules/documents/{name}/history": show_history,
    }
    looks = [Route(path, _behind(admin_auth, page), methods=["GET"]) for path, page in pages.items()]
    return [Route("/admin/events", events, methods=["GET"]), *looks]


def _change_routes(operator: Operator, admin_auth: AdminAuth) -> list[Route]:
    async def explain(request: Request) -> Response:
        value = await _read_object(request)
        body, tenant = value.get("request"), value.get("tenant", TENANT)
        if not isinstance(body, dict) or not isinstance(tenant, str):
            raise GatewayError(400, "`request` must be a request's body, `tenant` a name.", param="request")
        return _json(await operator.explainer.explain(body, len(msgspec.json.encode(body)), tenant))

    def fleet_route(verb: str, edit: Edit) -> Route:
        async def change(request: Request) -> Response:
            await _read_object(request)
            return _json(_spell_change(await operator.edit_fleet(edit, request.path_params["id"])))

        return Route(f"/admin/instances/{{id}}/{verb}", _changing(admin_auth, change), methods=["POST"])

    async def check_rules(request: Request) -> Response:
        value = await _read_object(request)
        return _json(await operator.check_rules(request.path_params["name"], value.get("body")))

    async def write_rules(request: Request) -> Response:
        value = await _read_object(request)
        expected = value.get("expect_version")
        if "body" not in value or not (expected is None or isinstance(expected, int)):
            raise GatewayError(400, "`body` is needed (null deletes), and `expect_version` is a number or null.")
        written = await operator.write_rules(request.path_params["name"], value["body"], expected)
        return _json(_spell_change(written))

    one = "/admin/rules/documents/{name}"
    return [
        Route("/admin/explain", _changing(admin_auth, explain), methods=["POST"]),
        fleet_route("drain", drain),
        fleet_route("undrain", undrain),
        Route(f"{one}/check", _changing(admin_auth, check_rules), methods=["POST"]),
        Route(one, _changing(admin_auth, write_rules), methods=["POST"]),
    ]


def _behind(admin_auth: AdminAuth, handler: Handler) -> Handler:
    async def checked(request: Request) -> Response:
        admin_auth.check(request)
        try:
            return await handler(request)
        except (Conflict, BadDocument, *AWAY) as error:
            raise to_gateway_error(error) from None

    return checked


def _changing(admin_auth: AdminAuth, handler: Handler) -> Handler:
    """Let only the page itself and tools ask: no other page that the operator's browser shows."""

    async def checked(request: Request) -> Response:
        refuse_other_pages(request, admin_auth)
        return await handler(request)

    return _behind(admin_auth, checked)


def refuse_other_pages(request: Request, admin_auth: AdminAuth) -> None:
    """Refuse what another site made a browser send. Raises GatewayError.

    Where no key is asked for, a name that somebody made lead to this machine is no name of it.
    """
    headers = request.headers
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != JSON:
        raise GatewayError(415, f"The body must be {JSON}.", code="unsupported_media_type")
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise GatewayError(403, "Another site may not ask for this.", code="cross_site")
    if admin_auth.is_open and not is_loopback(request.url.hostname or ""):
        raise GatewayError(403, "Without the operator's key this is for requests to this machine by its own name.")


def to_gateway_error(error: Exception) -> GatewayError:
    """Return what a failed change or look is told as."""
    if isinstance(error, Conflict):
        return GatewayError(409, f"Somebody else was first: {error}.", code="version_conflict")
    if isinstance(error, BadDocument):
        return GatewayError(400, str(error))
    return GatewayError(503, "Redis does not answer: nothing can be read or changed there.", code="redis_away")


async def _read_object(request: Request) -> JsonObject:
    body = await read_body(request.scope, request.receive, MOST_BODY_BYTES, BODY_TIMEOUT_S, lambda taken: None)
    return parse_object(body or b"{}")


def _spell_document(one: Document) -> dict[str, Any]:
    return {
        "name": one.name,
        "version": one.version,
        "author": one.author,
        "at_s": one.at_ms / 1000,
        "deleted": one.deleted,
        "body": one.value,
    }


def _spell_change(one: Document) -> dict[str, Any]:
    return {"name": one.name, "version": one.version, "revision": one.revision}


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type=JSON, headers={"cache-control": "no-store"})
