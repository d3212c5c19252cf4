"""Who asks: the key of a request tells its tenant, and nothing else that a client sends does."""

from collections.abc import Callable, Sequence
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
        keys = read_keys(connection.headers)
        try:
            return self._find(keys)
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
            message = FLAWS[error.flaw] if keys else "An API key is needed: Authorization: Bearer KEY."
            raise GatewayError(401, message, code="invalid_api_key", headers={"www-authenticate": "Bearer"}) from None

    def _find(self, keys: Sequence[str]) -> str:
        """Return the tenant of the first key that is good. Raises what ``TenantBook.find`` does, and GatewayError."""
        found: set[str] = set()
        tenant, flaw = None, BadKey()
        for key in keys:
            try:
                named = self.book.find(key)
            except BadKey as error:
                flaw = flaw if found or flaw.flaw else error
                continue
            found.add(key)
            tenant = tenant or named
        if len(found) > 1:
            message = "Authorization and x-api-key hold different keys, and both are good: send one."
            raise GatewayError(401, message, code="invalid_api_key")
        if tenant is None:
            raise flaw
        return tenant


def read_keys(headers: Headers) -> Sequence[str]:
    """Return the different keys, the one of Authorization first. Raises GatewayError where a header stands twice."""
    for name in ("authorization", "x-api-key"):
        if len(headers.getlist(name)) > 1:
            raise GatewayError(400, f"The header {name} is given more than once.", code="duplicate_header")
    scheme, _, bearer = headers.get("authorization", "").partition(" ")
    keys = [bearer.strip() if scheme.lower() == "bearer" else "", headers.get("x-api-key", "").strip()]
    return list(dict.fromkeys(filter(None, keys)))
