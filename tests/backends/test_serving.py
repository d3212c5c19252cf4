"""Tests of where a process listens."""

import pytest

from backends.serving import CannotListen, bind, parse_listen


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
