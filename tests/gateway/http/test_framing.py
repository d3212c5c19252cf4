"""Heads that are taken, and heads that are not."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.http.edge import find_flaw, write_without_upgrade

HOST = (b"host", b"x")
NAMES = st.sampled_from([b"host", b"transfer-encoding", b"content-length", b"upgrade", b"accept"])
HEADERS = st.lists(st.tuples(NAMES, st.sampled_from([b"chunked", b"x", b"CHUNKED ", b"gzip", b"3"])), max_size=5)


@given(st.sampled_from(["0.9", "1.0", "1.1", "2.0"]), st.binary(max_size=9), HEADERS)
def test_what_is_taken_has_one_meaning(version: str, target: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    """A head that is taken has a path, at most one host, and no transfer coding but a single chunked."""
    if find_flaw(version, b"POST", target, headers) is not None:
        return
    codings = [value for name, value in headers if name == b"transfer-encoding"]
    assert version in ("1.0", "1.1") and target.startswith(b"/")
    assert len([name for name, _ in headers if name == b"host"]) <= 1
    assert not codings or (len(codings) == 1 and version == "1.1" and codings[0].strip().lower() == b"chunked")


def test_connect_is_never_taken() -> None:
    """A tunnel is refused, also to something like a path."""
    flaw = find_flaw("1.1", b"CONNECT", b"/x", [HOST])
    assert flaw is not None and flaw.status == 400


def test_head_without_upgrade() -> None:
    """Only the request for another protocol is left out."""
    head = write_without_upgrade(b"POST", b"/v1", [HOST, (b"upgrade", b"h2c"), (b"connection", b"upgrade")])
    assert head == b"POST /v1 HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\n\r\n"
