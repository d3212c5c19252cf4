"""The link's HTTP control: ``GET /stats``, ``POST /set``, ``/stall``, ``/cut`` and ``/heal``."""

from typing import Annotated, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from backends.transport.wan.link import WanLink

Wanted = TypeVar("Wanted", bound=msgspec.Struct)


class SetLink(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``POST /set``: what to change."""

    rate_mbit: Annotated[float, msgspec.Meta(gt=0)] | None = None
    delay_ms: Annotated[float, msgspec.Meta(ge=0)] | None = None


class StallLink(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``POST /stall``: bytes stop, or go on."""

    on: bool = True


class CutLink(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``POST /cut``: connections break until ``/heal``, or for ``for_s``."""

    for_s: Annotated[float, msgspec.Meta(gt=0)] | None = None


def make_control(link: WanLink) -> Starlette:
    """The control of ``link``; each answer is its state and counts."""
    control = _Control(link)
    return Starlette(
        routes=[
            Route("/stats", control.stats),
            Route("/set", control.set, methods=["POST"]),
            Route("/stall", control.stall, methods=["POST"]),
            Route("/cut", control.cut, methods=["POST"]),
            Route("/heal", control.heal, methods=["POST"]),
        ],
        exception_handlers={msgspec.DecodeError: _refuse},
    )


class _Control:
    def __init__(self, link: WanLink) -> None:
        self._link = link

    async def stats(self, request: Request) -> Response:
        return self._answer()

    async def set(self, request: Request) -> Response:
        wanted = await _read(request, SetLink)
        self._link.set(rate_mbit=wanted.rate_mbit, delay_ms=wanted.delay_ms)
        return self._answer()

    async def stall(self, request: Request) -> Response:
        self._link.stall((await _read(request, StallLink)).on)
        return self._answer()

    async def cut(self, request: Request) -> Response:
        self._link.cut((await _read(request, CutLink)).for_s)
        return self._answer()

    async def heal(self, request: Request) -> Response:
        self._link.heal()
        return self._answer()

    def _answer(self) -> Response:
        return Response(msgspec.json.encode(self._link.stats()), media_type="application/json")


async def _read(request: Request, kind: type[Wanted]) -> Wanted:
    return msgspec.json.decode(await request.body() or b"{}", type=kind)


def _refuse(request: Request, error: Exception) -> Response:
    return Response(msgspec.json.encode({"error": str(error)}), status_code=400, media_type="application/json")
