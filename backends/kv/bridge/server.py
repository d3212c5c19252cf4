"""The bridge's HTTP API.

``POST /v1/transfers`` streams a transfer's progress as lines of JSON; a client that goes away stops its transfer.
``PATCH /v1/transfers/{id}`` gives one another priority class, ``DELETE`` stops it, ``GET /v1/transfers`` lists them,
``GET /v1/link`` tells the link's state, ``POST /v1/keys`` how keys in a store are spelled.

A transfer belongs to the holder of the key that opened it; nobody else sees, changes or ends it.
"""

import asyncio

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from backends.kv.bridge.access import BridgeAccess
from backends.kv.bridge.bodies import BodyReader, BodyRefused
from backends.kv.bridge.keys import KeysRefused
from backends.kv.bridge.look import CannotLook, find_keys
from backends.kv.bridge.metrics import BridgeMetrics
from backends.kv.bridge.mover import Mover, TooManyTransfers, TransferExists
from backends.kv.bridge.orders import find_chunks
from backends.kv.bridge.transfer import BridgeTransfer
from backends.kv.bridge.types import (
    MAX_BODY_BYTES,
    ChunkId,
    KeySearch,
    TransferChange,
    TransferItem,
    TransferLine,
    TransferOrder,
)
from backends.types import LinkState

_OPEN_TRANSFER = msgspec.json.Decoder(TransferOrder)
_CHANGE_TRANSFER = msgspec.json.Decoder(TransferChange)
_FIND_KEYS = msgspec.json.Decoder(KeySearch)
_SMALL_BODY_BYTES = 64 << 10
_OPEN_PATHS = frozenset({"/health", "/metrics"})
"""What anybody may ask for who reaches the bridge: counts, and whether it lives."""
_HOLDER = "pdd_holder"


def make_app(mover: Mover, access: BridgeAccess | None = None) -> Starlette:
    """The API over ``mover``, which must be running."""
    access = access or BridgeAccess()
    bodies = BodyReader()
    api = _Api(mover, bodies)
    return Starlette(
        routes=[
            Route("/v1/transfers", _Transfers(mover, access, bodies), methods=["POST", "GET"]),
            Route("/v1/transfers/{transfer_id:path}", api.change, methods=["PATCH"]),
            Route("/v1/transfers/{transfer_id:path}", api.delete, methods=["DELETE"]),
            Route("/v1/link", api.link),
            Route("/v1/keys", api.keys, methods=["POST"]),
            Route("/health", api.health),
            Route("/metrics", api.metrics),
        ],
        middleware=[Middleware(_Door, access=access)],
    )


class _Door:
    """Asks for a key, and notes whose it is."""

    def __init__(self, app: ASGIApp, access: BridgeAccess) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in _OPEN_PATHS:
            shown = [value.decode("latin-1") for name, value in scope["headers"] if name == b"authorization"]
            holder = self._access.find_holder(shown[0] if len(shown) == 1 else None)
            if holder is None:
                await _error(401, "a key of this bridge is needed, as Authorization: Bearer")(scope, receive, send)
                return
            scope[_HOLDER] = holder
        await self._app(scope, receive, send)


def _own_id(scope: Scope, transfer_id: str) -> str:
    """The mover's name of a transfer: ids of different holders never meet."""
    holder: str = scope[_HOLDER]
    return f"{holder}\n{transfer_id}" if holder else transfer_id


class _Api:
    """The endpoints that answer at once."""

    def __init__(self, mover: Mover, bodies: BodyReader) -> None:
        self._mover = mover
        self._bodies = bodies
        self._metrics = BridgeMetrics(mover)

    async def change(self, request: Request) -> Response:
        try:
            async with self._bodies.read(request.receive, _SMALL_BODY_BYTES) as body:
                change = _CHANGE_TRANSFER.decode(body)
        except BodyRefused as error:
            return _error(error.status, str(error))
        except msgspec.DecodeError as error:
            return _error(400, str(error))
        transfer_id = _own_id(request.scope, request.path_params["transfer_id"])
        return _done(self._mover.prioritise(transfer_id, change.priority))

    async def delete(self, request: Request) -> Response:
        return _done(self._mover.close(_own_id(request.scope, request.path_params["transfer_id"])))

    async def link(self, request: Request) -> Response:
        mover, queued_bytes = self._mover, self._mover.schedule.queued_by_class()
        return _json(
            LinkState(
                rate_bytes_per_s=mover.pace.rate_bytes_per_s,
                queued_bytes=sum(queued_bytes.values()),
                rtt_s=mover.pace.rtt_s,
                up=mover.link_up,
                wan_bytes_total=mover.pace.arrived_bytes,
                open_transfers=len(mover.transfers),
                queued_later_bytes=queued_bytes["later"],
                later_transfers=sum(transfer.priority == "later" for transfer in mover.transfers.values()),
            )
        )

    async def keys(self, request: Request) -> Response:
        try:
            async with self._bodies.read(request.receive, _SMALL_BODY_BYTES) as body:
                search = _FIND_KEYS.decode(body)
        except BodyRefused as error:
            return _error(error.status, str(error))
        except msgspec.DecodeError as error:
            return _error(400, str(error))
        try:
            async with asyncio.timeout(self._mover.silence_s):
                addresses = await self._mover.addresses_of(search.side)
            return _json(await find_keys(addresses, search.markers, self._mover.silence_s))
        except CannotLook as error:
            return _error(503, str(error))
        except TimeoutError:
            return _error(503, "the cluster does not tell its servers")

    async def health(self, request: Request) -> Response:
        return _json({"status": "ok", "link_up": self._mover.link_up, "destination_up": self._mover.destination_up})

    async def metrics(self, request: Request) -> Response:
        return Response(self._metrics.render(), media_type=CONTENT_TYPE_LATEST)


class _Transfers:
    """``/v1/transfers`` as plain ASGI, so that a transfer ends with its client's connection."""

    def __init__(self, mover: Mover, access: BridgeAccess, bodies: BodyReader) -> None:
        self._mover = mover
        self._access = access
        self._bodies = bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST":
            await self._list(scope)(scope, receive, send)
            return
        opened = await self._open(scope, receive)
        if isinstance(opened, Response):
            await opened(scope, receive, send)
            return
        watch = asyncio.create_task(self._stop_when_gone(opened, receive))
        try:
            await self._stream(opened, send)
        finally:
            watch.cancel()
            self._mover.release(opened)

    def _list(self, scope: Scope) -> Response:
        own = _own_id(scope, "")
        return _json(
            [
                TransferItem(transfer.id.removeprefix(own), _line(transfer), transfer.priority, transfer.tenant)
                for transfer in self._mover.transfers.values()
                if transfer.id.startswith(own)
            ]
        )

    async def _open(self, scope: Scope, receive: Receive) -> BridgeTransfer | Response:
        try:
            async with self._bodies.read(receive, MAX_BODY_BYTES) as body:
                # a long prompt of many ranks takes a second: nobody else's transfer stands still for it
                order, chunks = await asyncio.to_thread(self._understand, body)
        except BodyRefused as error:
            return _error(error.status, str(error))
        except (msgspec.DecodeError, KeysRefused) as error:
            return _error(400, str(error))
        try:
            return self._mover.open(
                _own_id(scope, order.transfer_id),
                chunks,
                order.deadline_s,
                order.priority,
                order.tenant,
                order.weight,
            )
        except TransferExists:
            return _error(409, "the transfer id is in use")
        except TooManyTransfers:
            return _error(503, "no further transfer can be opened now")

    def _understand(self, body: bytes) -> tuple[TransferOrder, list[ChunkId]]:
        order = _OPEN_TRANSFER.decode(body)
        chunks = find_chunks(order)
        self._access.check(order)
        return order, chunks

    async def _stop_when_gone(self, transfer: BridgeTransfer, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            continue
        self._mover.release(transfer)

    async def _stream(self, transfer: BridgeTransfer, send: Send) -> None:
        headers = [(b"content-type", b"application/x-ndjson"), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        while True:
            await transfer.changed.wait()
            transfer.changed.clear()
            ended = transfer.ended
            body = msgspec.json.encode(_line(transfer)) + b"\n"
            await send({"type": "http.response.body", "body": body, "more_body": not ended})
            if ended:
                return


def _line(transfer: BridgeTransfer) -> TransferLine:
    standing = transfer.standing
    return TransferLine(
        state=transfer.state,
        chunks_total=standing.chunks_total,
        chunks_done=standing.chunks_done,
        chunks_present=standing.chunks_present,
        wan_bytes=standing.wan_bytes,
        error=transfer.error,
        first_seen=standing.first_seen,
        chunk_bytes=transfer.chunk_bytes,
        chunks_seen=standing.chunks_seen,
    )


def _json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status_code=status, media_type="application/json")


def _done(found: bool) -> Response:
    return Response(status_code=204) if found else _error(404, "no such transfer")


def _error(status: int, message: str) -> Response:
    return _json({"error": message}, status)
