"""Responses that are kept for their clients: asked for by id, deleted, gone on from. Sealed in Redis, for a while.

Each is kept with the whole conversation up to it, so that it does not hang on earlier ones. A client gets but its own
tenant's.
"""

import asyncio
import logging
from typing import Any

import msgspec
import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.api.wire import encode_json
from gateway.auth.identify import Identify
from gateway.auth.sealed import MOST_BYTES, SealedStore
from gateway.errors import GatewayError, bad_field, reason_of
from gateway.http.body import JsonObject
from gateway.http.routing import JSON
from gateway.redis.client import AWAY

log = logging.getLogger(__name__)

PATH = "/v1/responses/{id}"
MOST_REFERENCES = 64
"""Items by reference that one request may have."""


class _Stored(msgspec.Struct):
    """``conversation``: all items up to the response, its own output too."""

    response: dict[str, Any]
    conversation: list[Any]


class ResponseMemory:
    """What is kept of responses; without a store nothing is."""

    def __init__(self, store: SealedStore | None = None) -> None:
        self._store = store

    @property
    def is_on(self) -> bool:
        return self._store is not None

    async def recall(self, tenant: str, value: JsonObject) -> tuple[JsonObject, JsonObject, int]:
        """Return a body with the earlier conversation as its input, the body as the answer repeats it, and by how many
        bytes the one is larger. Raises GatewayError.
        """
        asked = {**value, "store": self.is_on and value.get("store") is not False}
        if not self.is_on:
            return value, asked, 0
        earlier: list[Any] = []
        grown = 0
        if (previous := value.get("previous_response_id")) is not None:
            found, grown = await self._find(tenant, previous, "previous_response_id")
            earlier = found.conversation
        items, named = await self._resolve(tenant, list_items(value.get("input")))
        if not earlier and items is None:
            return value, asked, 0
        given = {name: entry for name, entry in value.items() if name != "previous_response_id"}
        return {**given, "input": [*earlier, *(items or ())]}, asked, grown + named

    async def keep(self, tenant: str, read: JsonObject, response: dict[str, Any]) -> None:
        """Keep a response that asks for it; where that cannot be, it says so itself. ``read``: see ``recall``."""
        if self._store is None or not response["store"]:
            return
        conversation = [*(list_items(read.get("input")) or ()), *response["output"]]
        data = orjson.dumps({"response": response, "conversation": conversation})
        try:
            if len(data) > MOST_BYTES:
                raise OSError(f"it has {len(data)} bytes")
            await self._store.put(tenant, response["id"], data)
        except AWAY as error:
            log.warning("the response %s is not stored: %s", response["id"], reason_of(error))
            response["store"] = False

    async def show(self, tenant: str, response_id: str) -> dict[str, Any]:
        """Return a response. Raises GatewayError."""
        found, _ = await self._find(tenant, response_id, None)
        return found.response

    async def delete(self, tenant: str, response_id: str) -> None:
        """Keep a response no longer. Raises GatewayError."""
        if self._store is None:
            raise no_such_response(response_id, None)
        try:
            found = await self._store.delete(tenant, response_id)
        except AWAY as error:
            raise unreachable(error) from None
        if not found:
            raise no_such_response(response_id, None)

    async def _find(self, tenant: str, response_id: Any, param: str | None) -> tuple[_Stored, int]:
        """Return what is stored, and its size in bytes. Raises GatewayError."""
        if not isinstance(response_id, str):
            raise bad_field(param, "The id of a response is text.", "invalid_type")
        if self._store is None:
            raise no_such_response(response_id, param)
        try:
            data = await self._store.get(tenant, response_id)
        except AWAY as error:
            raise unreachable(error) from None
        if data is None:
            raise no_such_response(response_id, param)
        return msgspec.json.decode(data, type=_Stored), len(data)

    async def _resolve(self, tenant: str, items: list[Any] | None) -> tuple[list[Any] | None, int]:
        """Put items in place of references to them; return the bytes that were looked through, too."""
        named = [item for item in items or () if isinstance(item, dict) and item.get("type") == "item_reference"]
        if not named:
            return items, 0
        if len(named) > MOST_REFERENCES:
            raise bad_field("input", f"A request may have at most {MOST_REFERENCES} item references.", "invalid_value")
        wanted = {str(item.get("id")) for item in named}
        owners = sorted({response_of(name) for name in wanted})
        stored = await asyncio.gather(*(self._find(tenant, owner, "input") for owner in owners))
        known = {item["id"]: item for one, _ in stored for item in one.response["output"]}
        if missing := sorted(wanted - known.keys()):
            raise no_such_response(missing[0], "input")
        put = [known[str(item["id"])] if any(item is one for one in named) else item for item in items or ()]
        return put, sum(size for _, size in stored)


def list_items(given: Any) -> list[Any] | None:
    """Return an input as items; None: it is none."""
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": given}]
    return given if isinstance(given, list) else None


def response_of(item_id: str) -> str:
    """Return the id of the response that an item belongs to."""
    return f"resp_{item_id.rpartition('_')[2][:-2]}"


def no_such_response(response_id: str, param: str | None) -> GatewayError:
    message = f"No response {response_id[:100]!r} is stored here."
    return GatewayError(404, message, code="response_not_found", param=param)


def unreachable(error: Exception) -> GatewayError:
    """Return the error of a store that does not answer."""
    message = f"Stored responses cannot be reached just now: {reason_of(error)}."
    return GatewayError(503, message, code="store_unreachable", retry_after_s=1.0)


def stored_routes(memory: ResponseMemory, identify: Identify) -> list[Route]:
    """Return the routes that show and delete."""

    async def show(request: Request) -> Response:
        told = await memory.show(identify(request), request.path_params["id"])
        return Response(encode_json(told), media_type=JSON)

    async def delete(request: Request) -> Response:
        response_id = request.path_params["id"]
        await memory.delete(identify(request), response_id)
        told = {"id": response_id, "object": "response", "deleted": True}
        return Response(encode_json(told), media_type=JSON)

    return [Route(PATH, show, methods=["GET"]), Route(PATH, delete, methods=["DELETE"])]
