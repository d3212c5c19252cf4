"""The HTTP paths of each program that docker/ runs."""

import asyncio
import functools
from typing import Any, cast

from starlette.applications import Starlette
from starlette.routing import Route

from backends.engines.reference.server import ReferenceServer
from backends.kv.bridge.mover import Mover
from backends.kv.bridge.resp import StoreAddress
from backends.kv.bridge.server import make_app
from backends.kv.bridge.types import BridgeLimits
from backends.transport.wan.control import make_control
from gateway.api.admin import Pages
from gateway.api.app import ApiState, build_admin_app, build_app
from gateway.auth.admin import AdminAuth
from tests.fakes.answers import ScriptedGenerator
from tests.gateway.api.access import make_access

ELSEWHERE = {
    "vllm.entrypoints.openai.api_server": frozenset({"/health", "/metrics"}),
    "lmcache.cli.main": frozenset({"/healthcheck"}),
}
"""Of programs that are not this project's; `make e2e` asks them there."""


@functools.cache
def served_paths() -> dict[str, frozenset[str]]:
    """By command of ``pdd``, or by module of another program."""
    nothing = cast(Any, None)
    state = ApiState(
        models={},
        generator=ScriptedGenerator(lambda _: []),
        created=0,
        access=make_access(),
        pages=Pages(list, lambda _: None, lambda: (b"", "text/plain")),
    )
    apps = {
        "serve": build_app(state),
        "serve admin": build_admin_app(state.pages, AdminAuth(is_open=True)),
        "engine": ReferenceServer(nothing, nothing, nothing, nothing).app(),
        "wan": make_control(nothing),
        "bridge": asyncio.run(_bridge()),
    }
    return {name: frozenset(_paths(app)) for name, app in apps.items()} | ELSEWHERE


async def _bridge() -> Starlette:
    address = StoreAddress("127.0.0.1", 6379)
    return make_app(Mover(address, address, BridgeLimits()))


def _paths(app: Starlette) -> list[str]:
    return [route.path for route in app.routes if isinstance(route, Route)]
