"""API keys: how they look, what is stored of them, and whether one is good.

A key is ``pdd_ID_RANDOM``. The id names its record and may be shown; the rest is known to its holder alone. What is
stored is a keyed hash: whoever reads Redis can neither use a key nor try keys out.
"""

import hmac
import re
import secrets
from base64 import b32encode
from dataclasses import dataclass, field

import msgspec

from gateway.auth.secrets import derive

ID_BYTES = 5
RANDOM_BYTES = 20
_KEY = re.compile(r"pdd_([a-z2-7]{8})_([a-z2-7]{32})")


class KeyRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """What is stored of a key, under its id. Times are Unix seconds; ``hash`` is what ``hash_key`` makes."""

    tenant: str
    hash: str
    created_s: int
    expires_s: int | None = None
    revoked_s: int | None = None
    note: str = ""

    def flaw(self, now_s: float) -> str | None:
        """Say why the key is not good any more; None: it is."""
        if self.revoked_s is not None:
            return "revoked"
        return "expired" if self.expires_s is not None and now_s >= self.expires_s else None


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key in its parts."""

    id: str
    random: str = field(repr=False)

    def __str__(self) -> str:
        return f"pdd_{self.id}_{self.random}"


def make_key() -> ApiKey:
    return ApiKey(_spell(secrets.token_bytes(ID_BYTES)), _spell(secrets.token_bytes(RANDOM_BYTES)))


def parse_key(text: str) -> ApiKey | None:
    """Read a key; None: it is none."""
    match = _KEY.fullmatch(text)
    return ApiKey(match[1], match[2]) if match else None


def hash_key(secret: bytes, key: ApiKey) -> str:
    """Return what is stored of the key's random part."""
    return derive(secret, "api-key", key.id, key.random)


def is_same(secret: bytes, key: ApiKey, record: KeyRecord | None) -> bool:
    """Say whether the record is the key's, in a time that does not tell how nearly, nor whether there is a record."""
    stored = record.hash if record is not None else ""
    return hmac.compare_digest(hash_key(secret, key).encode(), stored.encode())


def _spell(data: bytes) -> str:
    return b32encode(data).decode().lower()
