"""The one secret of a deployment, and what is derived from it: hashes of keys, and the cache salts of
tenants.
"""

import hmac
import logging
import os
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from os.path import normpath
from pathlib import Path

from backends.transport.private import TooOpen, find_openness
from gateway.config.fleet_settings import BadSettings, ModelSettings
from gateway.config.settings import AuthSettings

log = logging.getLogger(__name__)

LEAST_SECRET_BYTES = 16


class BadSecret(Exception):
    """There is no usable secret; the message says why, and never holds it."""


def read_secret(env: str | None, file: str | None) -> bytes | None:
    """Read the secret from the environment variable or the file that is named; None: neither is. Raises BadSecret."""
    if env is not None:
        where = f"the environment variable {env}"
        if env not in os.environ:
            raise BadSecret(f"{where} is not set; it must hold the secret, at least {LEAST_SECRET_BYTES} bytes")
        secret = os.environb[env.encode()]
    elif file is not None:
        where = file
        try:
            openness = find_openness(Path(file))
            secret = Path(file).read_bytes()
        except OSError as error:
            raise BadSecret(f"cannot read {file}: {error.strerror}") from None
        except TooOpen as error:
            raise BadSecret(str(error)) from None
        if openness is not None:
            log.warning("%s", openness)
    else:
        return None
    secret = secret.strip()
    if len(secret) < LEAST_SECRET_BYTES:
        raise BadSecret(f"{where} holds {len(secret)} bytes; a secret has at least {LEAST_SECRET_BYTES}")
    return secret


def derive(secret: bytes, purpose: str, *parts: str) -> str:
    """Return what only the holder of the secret can make of the parts, as 64 hex digits.

    Each part is framed by its length, so that no two lists of parts look the same.
    """
    framed = b"".join(len(part).to_bytes(8, "big") + part for part in (text.encode() for text in (purpose, *parts)))
    return hmac.digest(secret, framed, "sha256").hex()


def find_secret(auth: AuthSettings) -> bytes | None:
    """Read the secret that the settings name; None: they name none. Raises BadSettings."""
    try:
        return read_secret(auth.secret_env, auth.secret_file)
    except BadSecret as error:
        key = "auth.secret_env" if auth.secret_env is not None else "auth.secret_file"
        raise BadSettings(f"{key}: {error}") from None


MOST_REMEMBERED = 10_000
TENANT_NAME_DIGITS = 16


def find_adapters(models: Sequence[ModelSettings]) -> frozenset[str]:
    """Return the names of the models whose KV others could read and must not."""
    names = {model.name: {("kv", model.kv_name or model.name), ("path", normpath(model.path))} for model in models}
    uses = Counter(name for own in names.values() for name in own)
    shared = {model for model, own in names.items() if any(uses[name] > 1 for name in own)}
    return frozenset(
        model.name for model in models if (model.name in shared if model.adapter == "auto" else model.adapter)
    )


class Salts:
    """Makes the salts that keep tenants' caches apart; without a secret there are none, and all share one cache.

    A salt hangs on the tenant's id or on its group, never on a key or on what a client sends, so it outlives keys. It
    is the same in every leg, in the index and in every transfer of a request.
    ``adapters``: models that have salts of their own, also without a secret: LMCache's keys do not name LoRA adapters.
    """

    def __init__(self, secret: bytes | None, adapters: frozenset[str] = frozenset()) -> None:
        self._secret = secret
        self._adapters = adapters
        self._derive = lru_cache(MOST_REMEMBERED)(self._make)
        self._name = lru_cache(MOST_REMEMBERED)(self._make_name)
        self._derive_adapters = lru_cache(MOST_REMEMBERED)(self._make_adapters)

    def of(self, tenant: str, group: str | None = None) -> str | None:
        """Return the salt of a tenant, or of the group with which it shares a cache."""
        return self._derive(tenant, group)

    def of_model(self, salt: str | None, model: str) -> str | None:
        """Return the salt of a tenant's requests to a model, given the tenant's own."""
        return self._derive_adapters(salt, model) if model in self._adapters else salt

    def name_tenant(self, tenant: str) -> str:
        """Return what bridges call a tenant: the same each time, and nothing that tells who it is."""
        return self._name(tenant)

    def _make_name(self, tenant: str) -> str:
        return derive(self._secret or b"", "wan-tenant", tenant)[:TENANT_NAME_DIGITS]

    def _make_adapters(self, salt: str | None, model: str) -> str:
        # A hash also where it keeps no secret: stores take no salt with the slash that names of models may have.
        return derive(self._secret or b"", "adapter-salt", *([] if salt is None else [salt]), model)

    def _make(self, tenant: str, group: str | None) -> str | None:
        if self._secret is None:
            return None
        kind, name = ("tenant", tenant) if group is None else ("group", group)
        return derive(self._secret, "cache-salt", kind, name)


NO_SALTS = Salts(None)
