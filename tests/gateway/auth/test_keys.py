"""Keys and what is stored of them."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.auth.keys import KeyRecord, hash_key, is_same, make_key, parse_key

SECRET = b"0123456789abcdef"


def test_keys_are_read_as_they_are_made() -> None:
    """A key says its id, and each is new."""
    key = make_key()
    assert parse_key(str(key)) == key != make_key()
    assert str(key).startswith(f"pdd_{key.id}_") and len(str(key)) == 45


@given(st.text(max_size=60))
def test_anything_else_is_no_key(text: str) -> None:
    """No text is read as a key that it does not spell exactly."""
    key = parse_key(text)
    assert key is None or str(key) == text


@pytest.mark.parametrize("change", [str.upper, lambda key: key + "\n", lambda key: " " + key, lambda key: key[:-1]])
def test_nearly_a_key_is_none(change: object) -> None:
    """Case, spaces, line ends and length count."""
    assert callable(change)
    assert parse_key(change(str(make_key()))) is None


def test_only_the_key_matches_its_record() -> None:
    """Another id, another random part, another secret or no record: not the same; the hash does not hold the key."""
    key, other = make_key(), make_key()
    record = KeyRecord(tenant="t", hash=hash_key(SECRET, key), created_s=0)
    assert is_same(SECRET, key, record)
    assert not is_same(SECRET, replace(key, random=other.random), record)
    assert not is_same(SECRET, replace(key, id=other.id), record)
    assert not is_same(SECRET * 2, key, record)
    assert not is_same(SECRET, key, None)
    assert key.random not in record.hash


def test_flaws() -> None:
    """A key is good until it expires or is revoked."""
    record = KeyRecord(tenant="t", hash="", created_s=0, expires_s=100)
    assert (record.flaw(99.9), record.flaw(100.0)) == (None, "expired")
    assert KeyRecord(tenant="t", hash="", created_s=0, revoked_s=5).flaw(0.0) == "revoked"
