"""What a process knows of tenants and keys."""

import logging

import msgspec
import pytest

from gateway.auth.failures import Failures
from gateway.auth.keys import ApiKey, KeyRecord, hash_key, make_key
from gateway.auth.tenants import BadKey, TenantBook, TenantDisabled, TenantRecord, TenantsUnknown
from gateway.config.document_store import Document
from tests.gateway.fleet.seams import Clock

SECRET = b"0123456789abcdef"


def document(kind: str, name: str, record: object) -> Document:
    """A stored record."""
    return Document(kind, name, 1, 1, 0, "test", msgspec.json.encode(record).decode())


def key_document(
    key: ApiKey, tenant: str = "acme", *, expires_s: int | None = None, revoked_s: int | None = None
) -> Document:
    """A stored key."""
    hashed = hash_key(SECRET, key)
    record = KeyRecord(tenant=tenant, hash=hashed, created_s=0, expires_s=expires_s, revoked_s=revoked_s)
    return document("key", key.id, record)


def test_a_key_names_its_tenant() -> None:
    """A good key is found, and only as it is."""
    book, key = TenantBook(SECRET), make_key()
    book.apply([document("tenant", "acme", TenantRecord()), key_document(key)])
    assert (book.find(str(key)), book.tenants) == ("acme", ("acme",))
    for wrong in ("", "pdd_", str(make_key()), str(ApiKey(key.id, make_key().random))):
        with pytest.raises(BadKey) as caught:
            book.find(wrong)
        assert caught.value.flaw is None


def test_flawed_keys_and_disabled_tenants() -> None:
    """Expired and revoked keys say so; a key of a disabled or a deleted tenant opens nothing."""
    clock = Clock(50.0)
    book = TenantBook(SECRET, clock)
    expiring, revoked, disabled, orphan = (make_key() for _ in range(4))
    book.apply(
        [
            document("tenant", "acme", TenantRecord()),
            document("tenant", "off", TenantRecord(disabled=True)),
            key_document(expiring, expires_s=100),
            key_document(revoked, revoked_s=1),
            key_document(disabled, "off"),
            key_document(orphan, "gone"),
        ]
    )
    assert book.find(str(expiring)) == "acme"
    clock.now_s = 100.0
    for key, flaw in ((expiring, "expired"), (revoked, "revoked")):
        with pytest.raises(BadKey, match=flaw):
            book.find(str(key))
    for key in (disabled, orphan):
        with pytest.raises(TenantDisabled):
            book.find(str(key))


def test_before_anything_was_read() -> None:
    """A process that has not read its tenants does not call keys bad."""
    with pytest.raises(TenantsUnknown):
        TenantBook(SECRET).find(str(make_key()))


def test_a_bad_record_keeps_no_other_from_being_applied(caplog: pytest.LogCaptureFixture) -> None:
    """A record that cannot be read is left out, with a line that names it; revocations beside it come through."""
    book, good, bad = TenantBook(SECRET), make_key(), make_key()
    tenant = document("tenant", "acme", TenantRecord())
    book.apply([tenant, key_document(good), key_document(bad)])
    with caplog.at_level(logging.ERROR):
        book.apply([tenant, key_document(good, revoked_s=1), document("key", bad.id, {"tenant": "acme", "hash": 1})])
    for key in (good, bad):
        with pytest.raises(BadKey):
            book.find(str(key))
    assert f"key {bad.id} is left out" in caplog.text


def test_failures_are_counted_by_peer() -> None:
    """After so many failures a minute a peer has to wait; others do not."""
    clock = Clock(0.0)
    failures = Failures(3, clock)
    assert [failures.note("a") for _ in range(4)] == [0.0, 0.0, 0.0, 20.0]
    assert failures.note("b") == 0.0
    clock.now_s = 20.0
    assert (failures.note("a"), failures.note("a")) == (0.0, 20.0)


def test_failures_remember_a_bounded_number_of_peers() -> None:
    """Many addresses cost no more memory than the bound; the oldest is forgotten first."""
    failures = Failures(1, Clock(0.0), most_peers=2)
    for peer in ("a", "b", "b", "c"):
        failures.note(peer)
    assert len(failures) == 2
    assert failures.note("b") > 0 and failures.note("a") == 0.0
