"""Who may see the operator's pages."""

import base64
import hmac
from dataclasses import dataclass, field

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection

from gateway.auth.failures import Failures
from gateway.auth.identify import read_keys
from gateway.errors import GatewayError
from gateway.http.proxies import name_neighbourhood

FAILURES_PER_MIN = 60
CHALLENGE = 'Bearer, Basic realm="pdd operator", charset="UTF-8"'
"""Browsers know Basic only, and ask for a name and a password then."""


FORWARDING_HEADERS = (
    "cf-connecting-ip",
    "forwarded",
    "true-client-ip",
    "via",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
    "x-real-ip",
)


@dataclass(frozen=True, slots=True)
class AdminAuth:
    """The way to the operator's pages on one listener. It is shut, or open to all, or has a key that no tenant has."""

    is_open: bool = False
    key: bytes | None = field(default=None, repr=False)
    is_local: bool = False
    """Open to this machine's own requests only, not to those that a proxy on it hands on."""
    failures: Failures = field(default_factory=lambda: Failures(FAILURES_PER_MIN))

    @property
    def is_there(self) -> bool:
        """Say whether anybody may see them."""
        return self.is_open or self.key is not None

    def lets_in(self, connection: HTTPConnection) -> bool:
        """Say whether a request may see what is behind it. Raises GatewayError where its headers differ."""
        if self.key is None:
            return self.is_open and not (self.is_local and is_forwarded(connection.headers))
        given = read_password(connection.headers) or next(iter(read_keys(connection.headers)), None)
        return given is not None and hmac.compare_digest(given.encode("latin-1", "replace"), self.key)

    def check(self, connection: HTTPConnection) -> None:
        """Let a request in, or raise GatewayError 400, 401 or 429."""
        if self.lets_in(connection):
            return
        wait_s = self.failures.note(name_neighbourhood(connection.client.host if connection.client else ""))
        if wait_s:
            raise GatewayError(429, "Too many requests with bad keys from this address.", retry_after_s=wait_s)
        message = "The operator's key is needed: Authorization: Bearer KEY, or in a browser as the password."
        raise GatewayError(401, message, code="invalid_api_key", headers={"www-authenticate": CHALLENGE})


def is_forwarded(headers: Headers) -> bool:
    """Say whether a proxy handed a request on: then it is not its sender that stands at the other end."""
    return any(name in headers for name in FORWARDING_HEADERS)


def read_password(headers: Headers) -> str | None:
    """Return what a browser was given as password, whatever the user's name; None: nothing."""
    scheme, _, packed = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        return base64.b64decode(packed.strip(), validate=True).partition(b":")[2].decode("latin-1") or None
    except ValueError:
        return None
