"""Keeps tenants' caches apart: every prompt of a tenant is hashed with a salt that nobody else has.

The salt hangs on the tenant's id or on its group, never on a key or on what a client sends, so it outlives keys. It is
the same in every leg, in the index and in every transfer of a request.
"""

from functools import lru_cache

from gateway.auth.secrets import derive

MOST_REMEMBERED = 10_000


class Salts:
    """Makes salts; without a secret there are none, and all tenants share one cache."""

    def __init__(self, secret: bytes | None) -> None:
        self._secret = secret
        self._derive = lru_cache(MOST_REMEMBERED)(self._make)

    def of(self, tenant: str, group: str | None = None) -> str | None:
        """Return the salt of a tenant, or of the group with which it shares a cache."""
        return self._derive(tenant, group)

    def _make(self, tenant: str, group: str | None) -> str | None:
        if self._secret is None:
            return None
        kind, name = ("tenant", tenant) if group is None else ("group", group)
        return derive(self._secret, "cache-salt", kind, name)
