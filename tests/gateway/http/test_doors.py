"""Connections are counted from their first moment on, and those that only wait make room."""

import asyncio
import ipaddress
import os
import resource
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from backends.transport.accepting import Guest
from backends.transport.serving import Tls
from gateway.http.doors import RESERVE, Doors, bound_by_descriptors
from gateway.http.edge import NO_ROOM, Edge, spell_refusal
from tests.certificates import make_certificates
from tests.gateway.http.edge_server import EdgeServer
from tests.gateway.http.test_edge import GET, Echo, echo, open_connection

__all__ = ["echo"]


class Visitor(Guest):
    """A connection that only counts."""

    def __init__(self, sent_bytes: int = 0) -> None:
        self.abandon = None
        self.sent_bytes = sent_bytes
        self.is_dropped = False

    def drop(self) -> None:
        self.is_dropped = True


def enter(doors: Doors, peer: str, count: int = 1, sent_bytes: int = 0) -> list[Visitor]:
    """Let so many in; return those that were."""
    visitors = [Visitor(sent_bytes) for _ in range(count)]
    return [one for one in visitors if doors.enter(one, peer)]


def test_of_those_that_wait_longest_the_one_that_sent_least_goes() -> None:
    """A new connection takes the place of one without a whole request; those with one stay."""
    doors = Doors(4)
    (serving, much, little, late) = (*enter(doors, "::1", 2, 500), *enter(doors, "::1", 2, 1))
    doors.serve(serving)
    assert len(enter(doors, "::1", 2)) == 2 and len(doors) == 4
    assert [one.is_dropped for one in (serving, much, little, late)] == [False, False, True, True]
    doors.serve(much)
    doors.leave(serving)
    doors.leave(serving)
    assert len(doors) == 3
    doors.wait(much)
    doors.wait(Visitor())
    assert len(doors) == 3


def test_nobody_enters_where_all_have_requests() -> None:
    """Where none waits the new one is refused."""
    doors = Doors(2)
    for one in enter(doors, "::1", 2):
        doors.serve(one)
    assert enter(doors, "::1") == []


def test_an_address_holds_no_more_than_are_free() -> None:
    """One address alone gets half and then replaces its own, an IPv6 network counting as one; others find room."""
    doors = Doors(8)
    first = enter(doors, "2001:db8::1", 4)
    assert len(enter(doors, "2001:db8::2", 3)) == 3 and len(doors) == 4
    assert [one.is_dropped for one in first] == [True, True, True, False]
    assert len(enter(doors, "192.0.2.1", 5)) == 5 and len(doors) == 6
    first[3].drop()
    for _ in range(3):
        assert len(enter(doors, "192.0.2.2")) == 1


def test_an_address_with_nothing_but_requests_is_refused_more() -> None:
    """What has whole requests is not replaced."""
    doors = Doors(8)
    for one in enter(doors, "192.0.2.1", 4):
        doors.serve(one)
    assert enter(doors, "192.0.2.1") == []
    assert len(enter(doors, "192.0.2.2")) == 1


@pytest.mark.parametrize("peer", ["127.0.0.1", "::1", "10.0.0.9"])
def test_proxies_and_this_machine_stand_for_many(peer: str) -> None:
    """They may have all connections."""
    doors = Doors(8, [ipaddress.ip_network("10.0.0.0/24")])
    assert len(enter(doors, peer, 8)) == len(doors) == 8


def test_connections_leave_descriptors_for_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of few descriptors a reserve is kept, of many a quarter; the settings' bound may be smaller."""
    for limit, most in ((1024, 1024 - RESERVE), (4096, 3072), (100, 1), (1 << 20, 10_000), (-1, 10_000)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, limit=limit: (limit, limit))
        assert bound_by_descriptors(10_000) == most


def descriptors() -> int:
    """Open ones of this process."""
    return len(os.listdir("/proc/self/fd"))


async def test_one_byte_heads_lock_nobody_out(echo: Echo) -> None:
    """A hundred connections with a byte each make room for a request, and hold no more descriptors than are allowed."""
    async with (
        EdgeServer(echo, Edge(doors=Doors(10, refusal=spell_refusal(NO_ROOM)))) as server,
        AsyncExitStack() as all_,
    ):
        before = await asyncio.to_thread(descriptors)
        for _ in range(100):
            connection = await open_connection(server)
            all_.callback(connection.writer.close)
            connection.writer.write(b"G")
        good = await open_connection(server)
        all_.callback(good.writer.close)
        good.writer.write(GET)
        assert (await good.read_head())[0] == 200
        assert len(server.state.connections) <= 10
        # The clients' own ends are in this process, too.
        assert await asyncio.to_thread(descriptors) <= before + 101 + 10


@pytest.fixture
def tls(tmp_path: Path) -> Tls:
    """A server's certificate."""
    made = make_certificates(tmp_path)
    return Tls(str(made.server), str(made.server_key))


async def test_handshakes_count_and_make_room(echo: Echo, tls: Tls) -> None:
    """Connections that never begin TLS hold places as others do, give them up to those that do, and end in time."""
    doors = Doors(3)
    async with EdgeServer(echo, Edge(0.3, doors=doors), tls=tls) as server, AsyncExitStack() as all_:
        silent = []
        for _ in range(5):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            all_.callback(writer.close)
            silent.append(reader)
        async with asyncio.timeout(10):
            assert await silent[0].read() == await silent[1].read() == b""
        assert len(doors) == 3
        async with asyncio.timeout(10):
            for reader in silent:
                assert await reader.read() == b""
        await asyncio.sleep(0)  # the server's ends come after the clients'
    assert len(doors) == 0


async def test_a_refused_connection_is_closed_at_once(echo: Echo) -> None:
    """Where all have requests a client without TLS is told why, and its descriptor is free."""
    async with EdgeServer(echo, Edge(doors=Doors(1, refusal=spell_refusal(NO_ROOM)))) as server:
        echo.go_on.clear()
        first = await open_connection(server)
        first.writer.write(GET)
        assert (await first.read_head())[0] == 200
        second = await open_connection(server)
        status, headers, error = await second.read_json()
        assert (status, headers["connection"], error["error"]["code"]) == (503, "close", "overloaded")
        assert len(server.edge.doors) == 1
        for connection in (first, second):
            connection.writer.close()
