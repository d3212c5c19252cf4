"""The bridge's HTTP API.

``POST /v1/transfers`` streams a transfer's progress as lines of JSON; a client that goes away stops its transfer.
``PATCH /v1/transfers/{id}`` gives one another priority class, ``DELETE`` stops it, ``GET /v1/transfers`` lists them,
``GET /v1/link`` tells the link's state, ``POST /v1/keys`` how keys in a store are spelled.
"""

import asyncio

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from backends.kv.bridge.keys import KeysRefused
from backends.kv.bridge.look import CannotLook, find_keys
from backends.kv.bridge.metrics import BridgeMetrics
from backends.kv.bridge.mover import Mover, TooManyTransfers, TransferExists
from backends.kv.bridge.orders import find_chunks
from backends.kv.bridge.transfer import BridgeTransfer
from backends.kv.bridge.types import (
    MAX_BODY_BYTES,
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


class _BodyTooLarge(Exception):
    """The request's body is beyond the bound."""


def make_app(mover: Mover) -> Starlette:
    """The API over ``mover``, which must be running."""
    api = _Api(mover)
    return Starlette(
        routes=[
            Route("/v1/transfers", _Transfers(mover), methods=["POST", "GET"]),
            Route("/v1/transfers/{transfer_id:path}", api.change, methods=["PATCH"]),
            Route("/v1/transfers/{transfer_id:path}", api.delete, methods=["DELETE"]),
            Route("/v1/link", api.link),
            Route("/v1/keys", api.keys, methods=["POST"]),
            Route("/health", api.health),
            Route("/metrics", api.metrics),
        ]
    )


class _Api:
    """The endpoints that answer at once."""

    def __init__(self, mover: Mover) -> None:
        self._mover = mover
        self._metrics = BridgeMetrics(mover)

    async def change(self, request: Request) -> Response:
        try:
            change = _CHANGE_TRANSFER.decode(await _read_body(request.receive))
        except _BodyTooLarge:
            return _too_large()
        except msgspec.DecodeError as error:
            return _error(400, str(error))
        return _done(self._mover.prioritise(request.path_params["transfer_id"], change.priority))

    async def delete(self, request: Request) -> Response:
        return _done(self._mover.close(request.path_params["transfer_id"]))

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
            search = _FIND_KEYS.decode(await _read_body(request.receive))
        except _BodyTooLarge:
            return _too_large()
        except msgspec.DecodeError as error:
            return _error(400, str(error))
        try:
            return _json(await find_keys(self._mover.address_of(search.side), search.markers, self._mover.silence_s))
        except CannotLook as error:
            return _error(503, str(error))

    async def health(self, request: Request) -> Response:
        return _json({"status": "ok", "link_up": self._mover.link_up, "destination_up": self._mover.destination_up})

    async def metrics(self, request: Request) -> Response:
        return Response(self._metrics.render(), media_type=CONTENT_TYPE_LATEST)


class _Transfers:
    """``/v1/transfers`` as plain ASGI, so that a transfer ends with its client's connection."""

    def __init__(self, mover: Mover) -> None:
        self._mover = mover

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST":
            await self._list()(scope, receive, send)
            return
        opened = await self._open(receive)
        if isinstance(opened, Response):
            await opened(scope, receive, send)
            return
        watch = asyncio.create_task(self._stop_when_gone(opened, receive))
        try:
            await self._stream(opened, send)
        finally:
            watch.cancel()
            self._mover.release(opened)

    def _list(self) -> Response:
        transfers = self._mover.transfers.values()
        return _json([TransferItem(transfer.id, _line(transfer), transfer.priority) for transfer in transfers])

    async def _open(self, receive: Receive) -> BridgeTransfer | Response:
        try:
            wanted = _OPEN_TRANSFER.decode(await _read_body(receive))
            chunks = find_chunks(wanted)
        except _BodyTooLarge:
            return _too_large()
        except (msgspec.DecodeError, KeysRefused) as error:
            return _error(400, str(error))
        try:
            return self._mover.open(wanted.transfer_id, chunks, wanted.deadline_s, wanted.priority)
        except TransferExists:
            return _error(409, "the transfer id is in use")
        except TooManyTransfers:
            return _error(503, "no further transfer can be opened now")

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


async def _read_body(receive: Receive) -> bytes:
    """The whole body; empty when the client left. Raises _BodyTooLarge."""
    body = bytearray()
    more = True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > MAX_BODY_BYTES:
            raise _BodyTooLarge
    return bytes(body)


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


def _too_large() -> Response:
    return _error(413, f"the body has more than {MAX_BODY_BYTES} bytes")


def _error(status: int, message: str) -> Response:
    return _json({"error": message}, status)
