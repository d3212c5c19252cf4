"""Who is believed to be at the other end."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.http.proxies import find_client, name_neighbourhood

TRUSTED = (ipaddress.ip_network("10.0.0.0/8"), ipaddress.ip_network("fd00::/8"))


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("10.0.0.1", ["198.51.100.7"], "198.51.100.7"),
        ("10.0.0.1", ["1.1.1.1, 198.51.100.7"], "198.51.100.7"),
        ("10.0.0.1", ["1.1.1.1, 198.51.100.7, 10.2.3.4"], "198.51.100.7"),
        ("10.0.0.1", ["1.1.1.1", "198.51.100.7"], "198.51.100.7"),
        ("10.0.0.1", ["198.51.100.7:4711"], "198.51.100.7"),
        ("10.0.0.1", ["[2001:db8::1]:4711"], "2001:db8::1"),
        ("10.0.0.1", ["::ffff:198.51.100.7"], "198.51.100.7"),
        ("::ffff:10.0.0.1", ["198.51.100.7"], "198.51.100.7"),
        ("fd00::1", ["2001:db8::1"], "2001:db8::1"),
        ("10.0.0.1", ["10.0.0.3, 10.0.0.2"], "10.0.0.3"),
        ("10.0.0.1", ["1.1.1.1, unknown"], "10.0.0.1"),
        ("10.0.0.1", ["1.1.1.1, nonsense, 10.0.0.2"], "10.0.0.2"),
        ("10.0.0.1", [""], "10.0.0.1"),
        ("10.0.0.1", [], "10.0.0.1"),
        ("198.51.100.9", ["1.1.1.1"], "198.51.100.9"),
        ("not an address", ["1.1.1.1"], "not an address"),
    ],
)
def test_finds_the_client(peer: str, forwarded: list[str], client: str) -> None:
    """The right-most address that is no trusted proxy counts, and only when a trusted proxy says so."""
    headers = [(b"host", b"x"), *((b"x-forwarded-for", value.encode()) for value in forwarded)]
    assert find_client(peer, headers, TRUSTED) == client


@given(st.binary(max_size=80))
def test_clients_cannot_choose_who_they_are(written: bytes) -> None:
    """Whatever a client writes, the address that the proxy has seen is the one that counts."""
    headers = [(b"x-forwarded-for", written + b", 198.51.100.7")]
    assert find_client("10.0.0.1", headers, TRUSTED) == "198.51.100.7"


@pytest.mark.parametrize(
    ("peer", "name"),
    [
        ("198.51.100.7", "198.51.100.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("::ffff:198.51.100.7", "198.51.100.7"),
        ("", ""),
    ],
)
def test_neighbourhood(peer: str, name: str) -> None:
    """One customer's addresses count as one."""
    assert name_neighbourhood(peer) == name
