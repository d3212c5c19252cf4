"""TLS as ``pdd serve`` speaks it."""

import ssl
from pathlib import Path

import httpx
import pytest

from backends.transport.serving import BadTls, Tls
from gateway.api.app import ApiState, build_app
from tests.certificates import Certificates, make_certificates
from tests.gateway.http.edge_server import EdgeServer


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """A server's and a client's certificate, and the authority of both."""
    return make_certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def client_context(certificates: Certificates) -> ssl.SSLContext:
    """A client that trusts the authority."""
    return ssl.create_default_context(cafile=str(certificates.authority))


def files(certificates: Certificates, client_ca: Path | None = None) -> Tls:
    """The server's files."""
    ca = str(client_ca) if client_ca else None
    return Tls(str(certificates.server), str(certificates.server_key), ca)


async def test_https(state: ApiState, certificates: Certificates, client_context: ssl.SSLContext) -> None:
    """With a certificate the listener speaks TLS 1.2 or newer, and nothing without it."""
    async with EdgeServer(build_app(state), tls=files(certificates)) as server:
        async with httpx.AsyncClient(verify=client_context) as http:
            assert (await http.get(f"{server.url}/health")).json() == {"status": "ok"}
            with pytest.raises(httpx.HTTPError):
                await http.get(f"http://127.0.0.1:{server.port}/health")


async def test_client_certificates(state: ApiState, certificates: Certificates, client_context: ssl.SSLContext) -> None:
    """With an authority for clients, whoever shows no certificate of it is not served."""
    async with EdgeServer(build_app(state), tls=files(certificates, certificates.authority)) as server:
        async with httpx.AsyncClient(verify=client_context) as http:
            with pytest.raises(httpx.HTTPError):
                await http.get(f"{server.url}/health")
    client_context.load_cert_chain(certificates.client, certificates.client_key)
    async with EdgeServer(build_app(state), tls=files(certificates, certificates.authority)) as server:
        async with httpx.AsyncClient(verify=client_context) as http:
            assert (await http.get(f"{server.url}/health")).status_code == 200


@pytest.mark.parametrize("key", ["cert_file", "key_file", "client_ca_file"])
def test_missing_file_is_named(certificates: Certificates, tmp_path: Path, key: str) -> None:
    """A file that is not there is named by its key."""
    good = files(certificates, certificates.authority)
    paths = {name: getattr(good, name) for name in ("cert_file", "key_file", "client_ca_file")}
    with pytest.raises(BadTls, match=key):
        Tls(**paths | {key: str(tmp_path / "none.pem")}).check()


def test_key_that_does_not_fit(certificates: Certificates) -> None:
    """A key of another certificate is refused, and so is a file that holds none."""
    good = files(certificates)
    good.check()
    for key in (certificates.client_key, certificates.authority):
        with pytest.raises(BadTls, match="private key"):
            Tls(good.cert_file, str(key)).check()
    with pytest.raises(BadTls, match="client_ca_file"):
        Tls(good.cert_file, good.key_file, str(certificates.server_key)).check()
