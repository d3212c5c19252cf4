"""The gateway's side of a bridge: ``KvPath`` over the bridge's HTTP API."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeVar, cast
from urllib.parse import quote

import msgspec
from msgspec import structs

from backends.errors import BackendError, EngineBroken, EngineUnavailable, KvWrongSize, TransferFailed
from backends.kv.bridge.keys import DIALECTS
from backends.kv.bridge.types import (
    WRONG_SIZE,
    DialectName,
    FoundKeys,
    KeySearch,
    TransferChange,
    TransferLine,
    TransferOrder,
    TransferShare,
)
from backends.transport.client import HttpOrigin, Response
from backends.types import (
    FoundKey,
    LinkState,
    PathTraits,
    StoreSide,
    TransferPriority,
    TransferProgress,
    TransferRequest,
)

log = logging.getLogger(__name__)

_DEADLINE_GRACE_S = 10.0
_LINK_TIMEOUT_S = 5.0
_CHANGE_TIMEOUT_S = 5.0
_LOOK_TIMEOUT_S = 20.0
_MAX_LINE_BYTES = 64 * 1024
_LINE = msgspec.json.Decoder(TransferLine)
_LINK = msgspec.json.Decoder(LinkState)
_FOUND = msgspec.json.Decoder(FoundKeys)


_Answer = TypeVar("_Answer")


@dataclass(slots=True)
class _Urgency:
    """The class of one open transfer: what it shall be, and what the bridge was told last."""

    wanted: TransferPriority
    told: TransferPriority
    is_open: bool = False
    """The bridge knows the transfer."""
    teller: asyncio.Task[None] | None = None


class BridgePath:
    """A ``KvPath`` through the bridge at ``url``. ``part``: its number among the bridges that move each transfer
    together, and how many these are. ``key``: what the bridge asks for."""

    traits = PathTraits(can_stop=True, reports_progress=True, overlaps_prefill=True)

    def __init__(self, url: str, *, part: tuple[int, int] | None = None, key: str | None = None) -> None:
        self._origin = HttpOrigin(url, headers={"Authorization": f"Bearer {key}"} if key else None)
        self._part = TransferShare(*part) if part is not None else None
        self._urgencies: dict[str, _Urgency] = {}

    async def transfer(self, request: TransferRequest) -> AsyncGenerator[TransferProgress, None]:
        """See ``KvPath``. A bridge that is away, refuses, dies or does not keep the deadline raises TransferFailed."""
        if request.dialect not in DIALECTS:
            raise TransferFailed(f"unknown key dialect {request.dialect!r}")
        body = msgspec.json.encode(self._order(request))
        urgency = self._urgencies[request.transfer_id] = _Urgency(request.priority, request.priority)
        try:
            response = await self._origin.send(
                "POST", "/v1/transfers", body, head_timeout_s=request.deadline_s + _DEADLINE_GRACE_S
            )
            try:
                if response.status != 200:
                    raise TransferFailed(await _reason(response))
                urgency.is_open = True
                self._tell(request.transfer_id, urgency)
                async with aclosing(_lines(response)) as lines:
                    async for line in lines:
                        yield _progress(line)
                        if line.state == "complete":
                            response.finish()
                            return
            finally:
                await response.aclose()
        except TransferFailed:
            raise
        except BackendError as error:
            raise TransferFailed(f"bridge: {error}") from error
        finally:
            if urgency.teller is not None:
                urgency.teller.cancel()
            if self._urgencies.get(request.transfer_id) is urgency:
                del self._urgencies[request.transfer_id]
        raise TransferFailed("bridge: the stream ended before the transfer did")

    def _order(self, request: TransferRequest) -> TransferOrder:
        shape, world_size = request.kv_shape, request.world_size
        dest_world_size = request.dest_world_size or world_size
        chunk_bytes = None
        if shape is not None and shape.layout == "latent":
            world_size = dest_world_size = 1  # LMCache keeps it once, whatever the ranks
        elif shape is not None:
            shape = structs.replace(shape, layout=request.kv_layout)
        windows = None
        if request.separate_groups:
            shape = None  # a group's chunks have a part of it
            windows = [None if tokens is None else -(-tokens // request.chunk_tokens) for tokens in request.kv_groups]
        if shape is not None:
            copies = max(1, world_size // shape.heads)  # each head is on so many ranks
            if request.checks_size:
                token_bytes = request.kv_bytes_per_token or shape.token_bytes
                chunk_bytes = token_bytes * copies * request.chunk_tokens
        return TransferOrder(
            transfer_id=request.transfer_id,
            dialect=cast(DialectName, request.dialect),
            model=request.model,
            token_ids=list(request.token_ids),
            chunk_tokens=request.chunk_tokens,
            salt=request.salt,
            dtype=request.dtype,
            world_size=world_size,
            dest_world_size=dest_world_size,
            shape=shape,
            chunk_bytes=chunk_bytes,
            group_windows=windows,
            part=self._part,
            hash_seed=request.hash_seed,
            deadline_s=request.deadline_s,
            priority=request.priority,
            tenant=request.tenant,
            weight=request.weight,
        )

    def prioritise(self, transfer_id: str, priority: TransferPriority) -> None:
        """See ``KvPath``. The bridge is told as soon as it knows the transfer, and of the newest class only."""
        urgency = self._urgencies.get(transfer_id)
        if urgency is not None:
            urgency.wanted = priority
            self._tell(transfer_id, urgency)

    def _tell(self, transfer_id: str, urgency: _Urgency) -> None:
        is_telling = urgency.teller is not None and not urgency.teller.done()
        if urgency.is_open and not is_telling and urgency.told != urgency.wanted:
            urgency.teller = asyncio.create_task(self._change(transfer_id, urgency))

    async def _change(self, transfer_id: str, urgency: _Urgency) -> None:
        """Tell the bridge until it knows the class that is wanted; one that does not take it keeps its own."""
        path = f"/v1/transfers/{quote(transfer_id, safe='')}"
        while urgency.told != urgency.wanted:
            urgency.told = urgency.wanted
            body = msgspec.json.encode(TransferChange(urgency.told))
            try:
                response = await self._origin.send("PATCH", path, body, head_timeout_s=_CHANGE_TIMEOUT_S)
                try:
                    await response.body()
                finally:
                    await response.aclose()
            except BackendError as error:
                log.debug("the bridge was not told that %s is %s: %s", transfer_id, urgency.told, error)

    async def link(self) -> LinkState:
        """What the bridge has measured of its link. Raises EngineUnavailable or EngineBroken."""
        return await self._ask("GET", "/v1/link", b"", _LINK, _LINK_TIMEOUT_S)

    async def find_keys(self, side: StoreSide, markers: Sequence[str]) -> list[FoundKey]:
        """Keys of a store that have one of ``markers`` in their name. Raises EngineUnavailable or EngineBroken."""
        body = msgspec.json.encode(KeySearch(side, list(markers)))
        return (await self._ask("POST", "/v1/keys", body, _FOUND, _LOOK_TIMEOUT_S)).keys

    async def _ask(
        self, verb: str, path: str, body: bytes, decoder: msgspec.json.Decoder[_Answer], timeout_s: float
    ) -> _Answer:
        response = await self._origin.send(verb, path, body, head_timeout_s=timeout_s)
        try:
            answer = await response.body()
        finally:
            await response.aclose()
        if response.status != 200:
            raise EngineUnavailable(f"the bridge answered {response.status}: {_cut(answer)}")
        try:
            return decoder.decode(answer)
        except (msgspec.DecodeError, RecursionError) as error:
            raise EngineBroken(f"the bridge's answer to {path} is malformed: {error}") from None

    async def aclose(self) -> None:
        """Close all connections, which stops the transfers that run."""
        await self._origin.aclose()


async def _lines(response: Response) -> AsyncGenerator[TransferLine, None]:
    """Parse the stream as it comes. Raises TransferFailed for a line that is none."""
    rest = b""
    while piece := await response.read():
        *whole, rest = (rest + piece).split(b"\n")
        if len(rest) > _MAX_LINE_BYTES:
            raise TransferFailed("bridge: an endless line")
        for text in whole:
            try:
                yield _LINE.decode(text)
            except (msgspec.DecodeError, RecursionError):
                raise TransferFailed("bridge: a malformed line") from None


def _progress(line: TransferLine) -> TransferProgress:
    """The line as progress. Raises TransferFailed when it tells of failure."""
    if line.error is not None and line.error.startswith(WRONG_SIZE):
        raise KvWrongSize(f"bridge: {line.error}")
    if line.state not in ("open", "moving", "complete"):
        raise TransferFailed(f"bridge: {line.error or line.state}")
    return TransferProgress(
        line.state,
        line.chunks_total,
        line.chunks_done,
        line.chunks_present,
        line.wan_bytes,
        line.first_seen,
        line.chunk_bytes,
        line.chunks_seen,
    )


async def _reason(response: Response) -> str:
    return f"the bridge answered {response.status}: {_cut(await response.body())}"


def _cut(body: bytes) -> str:
    return body[:300].decode(errors="replace")
