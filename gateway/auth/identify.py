"""Who asks: the key of a request tells its tenant, and nothing else that a client sends does."""

from collections.abc import Callable
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection

from gateway.auth.failures import Failures
from gateway.auth.tenants import BadKey, TenantBook, TenantDisabled, TenantsUnknown
from gateway.errors import GatewayError
from gateway.http.proxies import name_neighbourhood

Identify = Callable[[HTTPConnection], str]
"""Return the tenant of a request. Raises GatewayError 400, 401, 403, 429 or 503."""

OPEN_TENANT = "default"
"""Everybody, where no keys are asked for."""
FLAWS = {None: "Incorrect API key.", "revoked": "This API key was revoked.", "expired": "This API key has expired."}


def identify_anyone(connection: HTTPConnection) -> str:
    """Let everybody in as one tenant."""
    return OPEN_TENANT


@dataclass(frozen=True, slots=True)
class KeyCheck:
    """Lets in whoever has a key. Good keys are never held up by the failures of others at the same address."""

    book: TenantBook
    failures: Failures

    def __call__(self, connection: HTTPConnection) -> str:
        """See ``Identify``."""
        key = read_key(connection.headers)
        try:
            if key is None:
                raise BadKey
            return self.book.find(key)
        except TenantsUnknown:
            message = "The gateway does not know its tenants yet."
            raise GatewayError(503, message, code="service_unavailable", retry_after_s=1.0) from None
        except TenantDisabled:
            raise GatewayError(403, "The tenant of this API key is disabled.", code="tenant_disabled") from None
        except BadKey as error:
            wait_s = self.failures.note(name_neighbourhood(connection.client.host if connection.client else ""))
            if wait_s:
                message = "Too many requests with bad API keys from this address."
                raise GatewayError(429, message, retry_after_s=wait_s) from None
            message = FLAWS[error.flaw] if key is not None else "An API key is needed: Authorization: Bearer KEY."
            raise GatewayError(401, message, code="invalid_api_key", headers={"www-authenticate": "Bearer"}) from None


def read_key(headers: Headers) -> str | None:
    """Return the key; None: there is none. Raises GatewayError where several readers could find several keys."""
    for name in ("authorization", "x-api-key"):
        if len(headers.getlist(name)) > 1:
            raise GatewayError(400, f"The header {name} is given more than once.", code="duplicate_header")
    scheme, _, bearer = headers.get("authorization", "").partition(" ")
    found = {bearer.strip()} if scheme.lower() == "bearer" and bearer.strip() else set()
    if api_key := headers.get("x-api-key", "").strip():
        found.add(api_key)
    if len(found) > 1:
        raise GatewayError(401, "Authorization and x-api-key hold different keys.", code="invalid_api_key")
    return found.pop() if found else None
