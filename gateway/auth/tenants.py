"""The tenants and their keys as this process knows them: a look-up asks nobody and takes no time.

Records are documents of the kinds ``tenant`` and ``key``, named by the tenant's and the key's id. One that cannot be
read opens nothing, and keeps no other one from being applied: revoking a key must never fail for a bad neighbour.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from gateway.auth.keys import KeyRecord, is_same, parse_key
from gateway.config.document_store import Document

log = logging.getLogger(__name__)

TENANT_KIND = "tenant"
KEY_KIND = "key"


class TenantRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """What is stored of a tenant, under its id."""

    disabled: bool = False
    note: str = ""


class BadKey(Exception):
    """The key opens nothing. ``flaw``: what became of a key that was good once; None: it never was."""

    def __init__(self, flaw: str | None = None) -> None:
        super().__init__(flaw or "unknown")
        self.flaw = flaw


class TenantDisabled(Exception):
    """The key is good, but its tenant may not ask."""


class TenantsUnknown(Exception):
    """Tenants and keys were not read yet."""


@dataclass(slots=True)
class TenantBook:
    """Knows every tenant and key. ``clock``: Unix seconds."""

    secret: bytes = field(repr=False)
    clock: Callable[[], float] = time.time
    known: bool = False
    """Whether tenants and keys were ever read."""
    _tenants: dict[str, TenantRecord] = field(default_factory=dict)
    _keys: dict[str, KeyRecord] = field(default_factory=dict)

    @property
    def tenants(self) -> Sequence[str]:
        return tuple(self._tenants)

    def apply(self, documents: Sequence[Document]) -> None:
        """Put these records in force, and none else."""
        tenants: dict[str, TenantRecord] = {}
        keys: dict[str, KeyRecord] = {}
        for document in documents:
            try:
                if document.kind == TENANT_KIND:
                    tenants[document.name] = msgspec.json.decode(document.body, type=TenantRecord)
                elif document.kind == KEY_KIND:
                    keys[document.name] = msgspec.json.decode(document.body, type=KeyRecord)
            except msgspec.DecodeError as error:
                log.error("%s %s is left out: %s", document.kind, document.name, error)
        self._tenants, self._keys, self.known = tenants, keys, True

    def find(self, text: str) -> str:
        """Return the tenant that a key belongs to. Raises BadKey, TenantDisabled and TenantsUnknown."""
        if not self.known:
            raise TenantsUnknown
        key = parse_key(text)
        if key is None:
            raise BadKey
        record = self._keys.get(key.id)
        if not is_same(self.secret, key, record) or record is None:
            raise BadKey
        if (flaw := record.flaw(self.clock())) is not None:
            raise BadKey(flaw)
        tenant = self._tenants.get(record.tenant)
        if tenant is None or tenant.disabled:
            raise TenantDisabled
        return record.tenant
