"""Which request heads are taken: only those that no other reader of the same bytes can take for something else.

The HTTP parser refuses bad syntax, two lengths, a length beside chunks and folded lines by itself; what it lets
through and proxies are known to read in different ways is refused here. No I/O.
"""

from collections.abc import Sequence

from gateway.errors import GatewayError

MOST_HEAD_BYTES = 64 << 10
MOST_HEADERS = 200
HeaderLines = Sequence[tuple[bytes, bytes]]


def bad_request(message: str) -> GatewayError:
    """Return the error of a head that is not taken; its connection ends with it."""
    return GatewayError(400, message, code="bad_request")


def too_large() -> GatewayError:
    """Return the error of a head that is out of proportion."""
    message = f"The request's headers are larger than {MOST_HEAD_BYTES} bytes, or more than {MOST_HEADERS}."
    return GatewayError(431, message, code="headers_too_large")


def find_flaw(version: str, method: bytes, target: bytes, headers: HeaderLines) -> GatewayError | None:
    """Return why a head is not taken; None: it is. Names of headers are in lower case."""
    if version not in ("1.0", "1.1"):
        return GatewayError(505, "HTTP/1.1 is spoken here.", code="bad_request")
    if method == b"CONNECT" or not target.startswith(b"/") or b"#" in target:
        # No forward proxy is here, and a filter before the gateway may look at paths only.
        return bad_request("The request target must be a path.")
    if len(headers) > MOST_HEADERS or sum(len(name) + len(value) for name, value in headers) > MOST_HEAD_BYTES:
        return too_large()
    hosts = sum(name == b"host" for name, _ in headers)
    if hosts > 1 or (hosts == 0 and version == "1.1"):
        return bad_request("There must be one Host header.")
    codings = [value.strip().lower() for name, value in headers if name == b"transfer-encoding"]
    if codings and (codings != [b"chunked"] or version == "1.0"):
        return bad_request("The only transfer coding is chunked.")
    return None


def write_without_upgrade(method: bytes, target: bytes, headers: HeaderLines) -> bytes:
    """Return an HTTP/1.1 head that asks for no other protocol; whoever speaks none may leave that unread."""
    lines = [b"%s %s HTTP/1.1" % (method, target)]
    lines += [b"%s: %s" % (name, value) for name, value in headers if name != b"upgrade"]
    return b"\r\n".join([*lines, b"", b""])
