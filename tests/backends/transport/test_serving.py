"""Where a process listens, and how it ends."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from backends.transport.serving import (
    KEEP_ALIVE_S,
    CannotListen,
    ServedApp,
    bind,
    bind_shared,
    parse_listen,
    reserve,
    serve,
    serve_sites,
)
from tests.fakes.gates import HoldGate


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:80", ("127.0.0.1", 80)),
        (":0", ("127.0.0.1", 0)),
        ("[::1]:7", ("::1", 7)),
        ("host:65535", ("host", 65535)),
    ],
)
def test_reads_an_address(text: str, address: tuple[str, int]) -> None:
    """Host and port are told apart; without a host it is this machine alone."""
    assert parse_listen(text) == address


@pytest.mark.parametrize("text", ["", "80", "host:", "host:x", "host:65536", "host:-1"])
def test_refuses_what_is_no_address(text: str) -> None:
    """What has no usable port is refused."""
    with pytest.raises(ValueError, match="HOST:PORT"):
        parse_listen(text)


def test_a_taken_port_is_a_clear_error() -> None:
    """An address that cannot be had is named."""
    with bind("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(CannotListen, match=f"127.0.0.1:{port}"):
            bind("127.0.0.1", port)


@dataclass(slots=True)
class Slow:
    """An application that answers with one chunk before its gate and one behind it."""

    gate: HoldGate = field(default_factory=HoldGate)

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Callable[[Any], Awaitable[None]]) -> None:
        """Serve one request."""
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"one", "more_body": True})
        await self.gate.hold()
        await send({"type": "http.response.body", "body": b"two"})


@dataclass(slots=True)
class Served:
    """A running server, and a client that has begun to read an answer."""

    app: Slow
    port: int
    stopping: asyncio.Event
    task: asyncio.Task[None]

    async def ask(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Send a request."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        return reader, writer


@pytest.fixture(params=[5, 0], ids=["long_grace", "no_grace"])
async def served(request: pytest.FixtureRequest) -> AsyncIterator[Served]:
    """A server on a free port that gives its answers some seconds, or none."""
    app, stopping, listener = Slow(), asyncio.Event(), bind("127.0.0.1", 0)
    port = listener.getsockname()[1]
    task = asyncio.create_task(serve(app, listener, stopping.set, grace_s=request.param))  # type: ignore[arg-type]
    yield Served(app, port, stopping, task)
    app.gate.open()
    await asyncio.wait_for(task, 10)


async def test_a_signal_lets_answers_end(served: Served, request: pytest.FixtureRequest) -> None:
    """OPS-10: after SIGTERM nobody new is served, what runs may end within its time, and what outlives it is cut."""
    reader, writer = await served.ask()
    await served.app.gate.arrivals()
    os.kill(os.getpid(), signal.SIGTERM)
    await served.stopping.wait()
    if "long_grace" in request.node.name:
        served.app.gate.open()
    rest = await reader.read()
    assert b"one" in rest
    # The last chunk, of no bytes, is what tells the whole answer from one that was cut.
    assert (b"two" in rest, rest.endswith(b"0\r\n\r\n")) == (("long_grace" in request.node.name,) * 2)
    writer.close()
    await asyncio.wait_for(served.task, 10)
    with pytest.raises(OSError):
        await served.ask()


async def test_answers_that_are_told_to_end_can_say_so() -> None:
    """OPS-10: what outlives its time is told first, once, and may then still send its last words."""
    app, listener, cuts = Slow(), bind("127.0.0.1", 0), 0
    stopping = asyncio.Event()

    def cut() -> None:
        nonlocal cuts
        cuts += 1
        app.gate.open()

    site = ServedApp(app, listener)  # type: ignore[arg-type]
    task = asyncio.create_task(serve_sites(site, on_stop=stopping.set, on_cut=cut, grace_s=0))
    served = Served(app, listener.getsockname()[1], stopping, task)
    reader, writer = await served.ask()
    await app.gate.arrivals()
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGTERM)
        await stopping.wait()
        stopping.clear()
    rest = await reader.read()
    assert b"two" in rest and rest.endswith(b"0\r\n\r\n")
    writer.close()
    await asyncio.wait_for(task, 10)
    assert cuts == 1


def test_idle_connections_outlive_a_load_balancers() -> None:
    """OPS-09: the balancer, which closes after a minute, closes first."""
    assert KEEP_ALIVE_S > 60


def test_a_reserved_address_is_shared_by_its_own_listeners_only() -> None:
    """Several listeners stand at a reserved address; one at which somebody listens already cannot be reserved."""
    with reserve("127.0.0.1", 0) as reserved, bind_shared(reserved) as first, bind_shared(reserved) as second:
        assert first.getsockname() == second.getsockname() == reserved.getsockname()
        with pytest.raises(CannotListen):
            reserve(*reserved.getsockname())
