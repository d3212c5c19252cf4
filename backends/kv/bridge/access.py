"""Who may use a bridge, and for which models' KV."""

import hashlib
import hmac
import logging
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from backends.kv.bridge.keys import KeysRefused
from backends.kv.bridge.types import TransferOrder
from backends.transport.private import TooOpen, find_openness

log = logging.getLogger(__name__)

_SCHEME = "bearer"
_LEAST_KEY_CHARS = 16
_KEYS = {
    # model, world size, rank, hash, dtype, tags
    "lmcache": re.compile(r"[^@]+@\d{1,3}@\d{1,3}@-?[0-9a-f]{1,16}@[a-z0-9_]{1,16}(@[^@%\s]+%[^@\s]+)*"),
    # model, packed ranks, object group, hash, salt
    "lmcache-mp": re.compile(r"[^@]+@[0-9a-f]{8}@[0-9a-f]{1,4}@[0-9a-f]{64}(@[^@/\\\0]{1,128})?"),
}


class BadKeys(ValueError):
    """The keys of a bridge cannot be used; the message says why, and holds none."""


class BridgeAccess:
    """``keys``: by the names of those who hold them; empty: whoever reaches the bridge may use it. ``models``: names in
    the stores of those whose KV is moved; empty: all."""

    def __init__(self, keys: Mapping[str, str] | None = None, models: Iterable[str] = ()) -> None:
        self._digests = {name: _digest(key) for name, key in (keys or {}).items()}
        self._models = frozenset(models)

    @property
    def is_open(self) -> bool:
        """Whether no key is asked for."""
        return not self._digests

    def find_holder(self, authorization: str | None) -> str | None:
        """Who shows this ``Authorization`` header; empty where no key is asked for, None: nobody who may."""
        if self.is_open:
            return ""
        scheme, _, key = (authorization or "").partition(" ")
        if scheme.lower() != _SCHEME:
            return None
        shown, found = _digest(key.strip()), None
        for name, digest in self._digests.items():
            if hmac.compare_digest(shown, digest):
                found = name
        return found

    def check(self, order: TransferOrder) -> None:
        """Raise KeysRefused for KV of other models, and for keys that are none of a chunk."""
        for key in order.keys or ():
            if _KEYS[order.dialect].fullmatch(key) is None:
                raise KeysRefused(f"keys: {key[:100]!r} is no key of a chunk in dialect {order.dialect}")
        models = {order.model} if order.keys is None else {key.partition("@")[0] for key in order.keys}
        unknown = models - self._models if self._models else None
        if unknown:
            raise KeysRefused(f"model: this bridge moves no KV of {min(unknown)!r}")


def read_keys(env: Mapping[str, str], variable: str | None, path: str | None) -> dict[str, str]:
    """Keys by holder: one in an environment variable, and those of a file, a line ``NAME KEY`` each. Raises BadKeys."""
    keys: dict[str, str] = {}
    if variable is not None:
        if not env.get(variable):
            raise BadKeys(f"--key-env: {variable} is not set")
        keys["gateway"] = env[variable]
    if path is not None:
        try:
            openness = find_openness(Path(path))
            lines = Path(path).read_text(encoding="ascii").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise BadKeys(f"--key-file: {path} cannot be read: {type(error).__name__}") from None
        except TooOpen as error:
            raise BadKeys(f"--key-file: {error}") from None
        if openness is not None:
            log.warning("--key-file: %s", openness)
        for number, line in enumerate(lines, 1):
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            if len(words) != 2 or words[0] in keys:
                raise BadKeys(f"--key-file: line {number} of {path} is no NAME KEY, or the name stands twice")
            keys[words[0]] = words[1]
        if not keys:
            raise BadKeys(f"--key-file: {path} holds no key")
    if any(len(key) < _LEAST_KEY_CHARS for key in keys.values()):
        raise BadKeys(f"a key has fewer than {_LEAST_KEY_CHARS} characters")
    return keys


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="replace")).digest()
