"""The secret, and the salts that keep tenants' caches apart."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.auth.secrets import BadSecret, Salts, derive, read_secret

SECRET = b"0123456789abcdef"
PARTS = st.lists(st.text(max_size=6), min_size=1, max_size=4)


def test_tenants_and_groups_have_salts_of_their_own() -> None:
    """TEN-03: each tenant and each group has one salt, also where their names are the same."""
    salts = Salts(SECRET)
    found = [salts.of("a"), salts.of("b"), salts.of("a", "a"), salts.of("a", "g")]
    assert len(set(found)) == 4 and all(salt and len(salt) == 64 for salt in found)
    assert salts.of("b", "g") == salts.of("a", "g")


def test_salts_hang_on_the_secret_and_on_nothing_else() -> None:
    """TEN-03: every process makes the same salts, whatever keys a tenant has; another secret makes others."""
    assert Salts(SECRET).of("a") == Salts(SECRET).of("a") != Salts(SECRET * 2).of("a")


def test_without_a_secret_there_is_no_salt() -> None:
    """Open mode has one cache."""
    assert Salts(None).of("a") is None


@given(PARTS, PARTS)
def test_no_two_lists_of_parts_look_the_same(one: list[str], other: list[str]) -> None:
    """TEN-03: framed parts never run into each other, as "org_1" and "2345" do without frames."""
    assert (derive(SECRET, "p", *one) == derive(SECRET, "p", *other)) == (one == other)
    assert derive(SECRET, "p", *one) != derive(SECRET, "q", *one)


def test_secret_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment variable or the file gives the secret, without the line's end; none is named: none."""
    path = tmp_path / "secret"
    path.write_bytes(SECRET + b"\n")
    monkeypatch.setenv("PDD_TEST_SECRET", SECRET.decode())
    assert read_secret(None, str(path)) == read_secret("PDD_TEST_SECRET", None) == SECRET
    assert read_secret(None, None) is None


def test_bad_secrets_are_refused_without_being_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing or short secret is an error that says where, and not what."""
    monkeypatch.setenv("PDD_TEST_SECRET", "short")
    for env, file in (("PDD_TEST_SECRET", None), ("PDD_NO_SECRET", None), (None, str(tmp_path / "none"))):
        with pytest.raises(BadSecret) as caught:
            read_secret(env, file)
        assert "short" not in str(caught.value) and str(env or file) in str(caught.value)
        assert ("is not set" in str(caught.value)) is (env == "PDD_NO_SECRET")
