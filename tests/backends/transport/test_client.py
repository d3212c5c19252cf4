"""The lean HTTP client over real sockets: pooling, retries, aborts, TLS, limits."""

import asyncio
import datetime
import gc
import ipaddress
import os
import ssl
from collections.abc import Coroutine
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.engines.vllm import VllmEngine
from backends.errors import EngineBroken, EngineTimeout, EngineUnavailable
from backends.transport.client import IDLE_CONNECTIONS, HttpOrigin
from backends.types import LegRequest
from tests.fakes.engine import FakeEngine
from tests.fakes.gates import HoldGate
from tests.fakes.legs import open_leg
from tests.fakes.raw_server import RawServer, say, say_and_close
from tests.fakes.script import Script, continuation

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;ext=1\r\nhel\r\n2\r\nlo\r\n0\r\nTrailer: x\r\n\r\n"


async def get(origin: HttpOrigin, limit_s: float = 5.0) -> bytes:
    """Body of one GET."""
    response = await origin.send("GET", "/x", head_timeout_s=limit_s)
    try:
        return await response.body()
    finally:
        await response.aclose()


async def test_request_bytes() -> None:
    """The request line holds the base path, the head what was configured and given, the body its length."""
    async with RawServer(say(OK)) as server:
        origin = HttpOrigin(server.url + "/base/", headers={"Authorization": "Bearer k"})
        response = await origin.send("POST", "/v1/x", b"{}", headers={"X-Request-Id": "r"}, head_timeout_s=5)
        assert await response.body() == b"hello"
        head, _, body = server.requests[0].partition(b"\r\n\r\n")
        assert head.split(b"\r\n") == [
            b"POST /base/v1/x HTTP/1.1",
            f"Host: {server.url.removeprefix('http://')}".encode(),
            b"Accept: */*",
            b"Authorization: Bearer k",
            b"X-Request-Id: r",
            b"Content-Length: 2",
        ]
        assert body == b"{}"
        await origin.aclose()


@settings(max_examples=40, deadline=None)
@given(answer=st.sampled_from([OK, CHUNKED]), cuts=st.lists(st.integers(0, 100), max_size=6))
async def test_any_cut_gives_the_same_answer(answer: bytes, cuts: list[int]) -> None:
    """An answer in any pieces is the same answer, and its connection is used again."""
    places = [0, *sorted(min(cut, len(answer)) for cut in cuts), len(answer)]
    pieces = [answer[start:end] for start, end in pairwise(places)]
    async with RawServer(say(*pieces), say(*pieces)) as server:
        origin = HttpOrigin(server.url)
        assert [await get(origin), await get(origin)] == [b"hello", b"hello"]
        assert server.accepted == 1
        await origin.aclose()


async def test_close_delimited_body() -> None:
    """A body without a length ends with its connection, which is not pooled."""
    async with RawServer(say_and_close(b"HTTP/1.0 200 OK\r\n\r\nhel", b"lo")) as server:
        origin = HttpOrigin(server.url)
        assert await get(origin) == b"hello"
        assert origin.open_connections == 0


@pytest.mark.parametrize("answer", [OK[:-1], CHUNKED[:-20], OK[:20]])
async def test_truncated_answer(answer: bytes) -> None:
    """A cut answer is broken, never taken for a short one."""
    async with RawServer(say_and_close(answer)) as server:
        origin = HttpOrigin(server.url)
        with pytest.raises(EngineBroken):
            await get(origin)
        assert origin.open_connections == 0


async def test_stale_connection_is_replaced_once() -> None:
    """A pooled connection that dies under a request is replaced, and the request is sent again, once."""
    async with RawServer(say(OK), say_and_close(), say(OK)) as server:
        origin = HttpOrigin(server.url)
        assert await get(origin) == b"hello"
        assert await get(origin) == b"hello"
        assert (len(server.requests), server.accepted) == (3, 2)
        await origin.aclose()


async def test_new_connection_is_not_replaced() -> None:
    """A loss on the first use of a connection, or on the second try, is the engine's."""
    async with RawServer(say(OK), say_and_close(), say_and_close(), say(OK)) as server:
        origin = HttpOrigin(server.url)
        assert await get(origin) == b"hello"
        with pytest.raises(EngineUnavailable):
            await get(origin)
        assert len(server.requests) == 3
        await origin.aclose()


async def test_half_an_answer_is_not_asked_for_again() -> None:
    """Once a byte of an answer came, a loss is final."""
    async with RawServer(say(OK), say_and_close(OK[:12]), say(OK)) as server:
        origin = HttpOrigin(server.url)
        assert await get(origin) == b"hello"
        with pytest.raises(EngineBroken):
            await get(origin)
        assert len(server.requests) == 2


async def test_idle_connection_that_is_closed_is_forgotten() -> None:
    """The engine's own keep-alive limit empties the pool without harm."""
    async with FakeEngine() as engine:
        origin = HttpOrigin(engine.url)
        for _ in range(3):
            response = await origin.send("GET", "/health", head_timeout_s=5)
            await response.body()
            engine.drop_connections()
            await engine.connections_left(0)
        await origin.aclose()
        assert origin.open_connections == 0


async def test_pool_is_bounded() -> None:
    """No more than so many idle connections are kept, the oldest go first."""
    gate = HoldGate()
    async with FakeEngine(script=Script(arrival=gate)) as engine:
        origin = HttpOrigin(engine.url)
        count = IDLE_CONNECTIONS + 5
        body = b'{"model":"demo","prompt":[1],"max_tokens":1}'
        sends = [
            asyncio.create_task(origin.send("POST", "/v1/completions", body, head_timeout_s=5)) for _ in range(count)
        ]
        await gate.arrivals(count)
        gate.open()
        for response in await asyncio.gather(*sends):
            await response.body()
        await engine.connections_left(IDLE_CONNECTIONS)
        assert origin.open_connections == IDLE_CONNECTIONS
        await origin.aclose()
        assert origin.open_connections == 0


async def test_refused() -> None:
    """Nothing listens."""
    async with RawServer() as server:
        origin = HttpOrigin(server.url)
    with pytest.raises(EngineUnavailable, match="no connection"):
        await get(origin)


async def test_connect_timeout() -> None:
    """A peer that accepts and then does not finish the TLS handshake is given up."""
    async with RawServer() as server:
        origin = HttpOrigin(server.url.replace("http:", "https:"), connect_timeout_s=0.05)
        with pytest.raises(EngineUnavailable, match="in time"):
            await get(origin)
        assert origin.open_connections == 0


async def test_cancel_while_connecting() -> None:
    """Cancelling the caller in the middle of a handshake leaves no socket behind."""
    async with RawServer() as server:
        origin = HttpOrigin(server.url.replace("http:", "https:"))
        task = asyncio.create_task(get(origin))
        await server.connected()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert origin.open_connections == 0


async def test_silence() -> None:
    """An engine that says nothing is given up, and the connection is closed."""
    async with RawServer(say()) as server:
        origin = HttpOrigin(server.url)
        with pytest.raises(EngineTimeout):
            await get(origin, limit_s=0.05)
        assert origin.open_connections == 0


async def test_body_limit() -> None:
    """An answer beyond the limit is refused, not collected."""
    async with RawServer(say(OK)) as server:
        origin = HttpOrigin(server.url)
        response = await origin.send("GET", "/", head_timeout_s=5)
        with pytest.raises(EngineBroken):
            await response.body(max_bytes=4)
        await response.aclose()
        assert origin.open_connections == 0


@pytest.mark.parametrize("url", ["ftp://x", "127.0.0.1:80", "http://", ""])
def test_bad_url(url: str) -> None:
    """Only http and https origins are taken."""
    with pytest.raises(ValueError, match="URL"):
        HttpOrigin(url)


async def test_header_with_a_line_end() -> None:
    """A value cannot add a header of its own."""
    with pytest.raises(ValueError, match="line end"):
        await HttpOrigin("http://127.0.0.1:1").send("GET", "/", headers={"X": "a\r\nY: b"}, head_timeout_s=1)


async def test_cancel_while_waiting_for_the_head() -> None:
    """Cancelling the caller closes the connection before the cancellation goes on."""
    gate = HoldGate()
    async with FakeEngine(script=Script(arrival=gate)) as engine:
        origin = HttpOrigin(engine.url)
        body = b'{"model":"demo","prompt":[1],"max_tokens":1}'
        task = asyncio.create_task(origin.send("POST", "/v1/completions", body, head_timeout_s=60))
        await gate.arrivals()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert origin.open_connections == 0
        await engine.idle()


def generate(engine: VllmEngine, tokens: int = 50) -> Any:
    """A leg over the fake's model."""
    return open_leg(engine, LegRequest("r", "demo", (5, 6, 7), tokens))


async def count_descriptors() -> int:
    """Open files and sockets of this process."""
    return len(await asyncio.to_thread(os.listdir, "/proc/self/fd"))


async def test_aborts_leave_nothing_behind() -> None:
    """After many aborts in every phase no task, socket or connection is left, and the next leg is well."""
    fake = FakeEngine()
    gc.collect()
    descriptors = await count_descriptors()
    tasks = asyncio.all_tasks()
    async with fake:
        engine = VllmEngine("e", fake.url)
        for tokens in range(200):
            stream = generate(engine)
            for _ in range(tokens % 7):
                await anext(stream)
            await stream.aclose()
        await fake.idle()
        await fake.connections_left(0)
        await fake.stop()
        assert asyncio.all_tasks() == tasks
        assert await count_descriptors() == descriptors
        await fake.start()
        ids = [token async for chunk in generate(engine) for token in chunk.token_ids]
        assert ids == continuation((5, 6, 7), 50)
        await engine.aclose()


def certificate(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's context with a certificate of 127.0.0.1 of its own, and a client's that trusts it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = folder / "server.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    pem.write_bytes(private + signed.public_bytes(serialization.Encoding.PEM))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(pem)
    return server, ssl.create_default_context(cafile=str(pem))


async def stream_and_abort(server: ssl.SSLContext | None = None, client: ssl.SSLContext | None = None) -> None:
    """One whole leg, one reused connection, one abort, one cut."""
    gate = HoldGate()
    async with FakeEngine(ssl_context=server) as fake:
        engine = VllmEngine("e", fake.url, ssl_context=client)
        for _ in range(2):
            ids = [token async for chunk in generate(engine) for token in chunk.token_ids]
            assert ids == continuation((5, 6, 7), 50)
        assert fake.connections == 1
        fake.script = Script(holds={3: gate})
        stream = generate(engine)
        await anext(stream)
        await stream.aclose()
        await fake.idle()
        await fake.connections_left(0)
        assert fake.calls[-1].state == "aborted"
        stream = generate(engine)
        await anext(stream)
        await gate.arrivals(2)
        await fake.stop()
        with pytest.raises(EngineBroken):
            async for _ in stream:
                pass
        await engine.aclose()


async def test_tls(tmp_path: Path) -> None:
    """The same over TLS."""
    await stream_and_abort(*await asyncio.to_thread(certificate, tmp_path))


async def test_untrusted_certificate(tmp_path: Path) -> None:
    """A certificate that is not trusted is no connection."""
    server_context, _ = await asyncio.to_thread(certificate, tmp_path)
    async with FakeEngine(ssl_context=server_context) as fake:
        with pytest.raises(EngineUnavailable, match="no connection"):
            await VllmEngine("e", fake.url).probe()


@pytest.mark.parametrize("is_tls", [False, True])
def test_uvloop(tmp_path: Path, is_tls: bool) -> None:
    """The same on the event loop that serves in production."""
    course: Coroutine[Any, Any, None] = stream_and_abort(*(certificate(tmp_path) if is_tls else ()))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(course)
