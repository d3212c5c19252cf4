"""Whether keys are asked for, as the settings say it."""

from typing import Any

import pytest

from gateway.auth.exposure import check_exposure
from gateway.auth.secrets import find_secret
from gateway.config.fleet_settings import BadSettings
from gateway.config.settings import parse_settings
from gateway.index.hashing import chain_seed, hash_blocks
from gateway.tenancy import name_index

BASE: dict[str, Any] = {
    "models": [{"name": "m", "path": "/m", "kv_bytes_per_token": 1}],
    "engines": [{"id": "p1", "role": "P", "model": "m", "region": "a", "url": "http://127.0.0.1:1"}],
}


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.0.1", "::1", "localhost"])
def test_this_machine_alone_needs_no_keys(host: str) -> None:
    """On loopback the gateway may be open without saying so."""
    check_exposure(parse_settings(BASE), host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "gateway.example"])
def test_elsewhere_open_must_be_said(host: str) -> None:
    """Where others can connect, a gateway without keys does not start unless the settings say that it is open."""
    with pytest.raises(BadSettings, match=r"^auth\.secret_env: "):
        check_exposure(parse_settings(BASE), host)
    for auth in ({"open": True}, {"secret_env": "PDD_SECRET"}, {"secret_file": "/secret"}):
        check_exposure(parse_settings(BASE | {"auth": auth}), host)


def test_loopback_behind_a_proxy_is_elsewhere() -> None:
    """A proxy on this machine brings the requests of others: then, too, open must be said."""
    proxied = BASE | {"trusted_proxies": ["127.0.0.1/32"]}
    with pytest.raises(BadSettings, match=r"^auth\.secret_env: "):
        check_exposure(parse_settings(proxied), "127.0.0.1")
    check_exposure(parse_settings(proxied | {"auth": {"open": True}}), "127.0.0.1")


@pytest.mark.parametrize(
    ("auth", "key"),
    [
        ({"open": True, "secret_env": "X"}, "auth.open"),
        ({"secret_file": "/x", "secret_env": "X"}, "auth.secret_file"),
    ],
)
def test_contradictions_are_named(auth: dict[str, Any], key: str) -> None:
    """Two ways at once are refused with the key's name."""
    with pytest.raises(BadSettings, match=key):
        parse_settings(BASE | {"auth": auth})


def test_a_secret_that_is_not_there_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that is named and not set is an error with the key's name, not open mode."""
    monkeypatch.delenv("PDD_TEST_SECRET", raising=False)
    with pytest.raises(BadSettings, match=r"^auth\.secret_env: .*PDD_TEST_SECRET"):
        find_secret(parse_settings(BASE | {"auth": {"secret_env": "PDD_TEST_SECRET"}}).auth)
    with pytest.raises(BadSettings, match=r"^auth\.secret_file: "):
        find_secret(parse_settings(BASE | {"auth": {"secret_file": "/does/not/exist"}}).auth)
    assert find_secret(parse_settings(BASE).auth) is None


def test_the_shared_index_is_keyed() -> None:
    """With a secret nobody can name a prompt's blocks without it, and another secret's index is another one."""
    found = [name_index(secret) for secret in (None, b"0123456789abcdef", b"0123456789abcdeg")]
    names = [hash_blocks(range(100), chain_seed("m", None, None, key)) for _, key in found]
    assert names[0] == hash_blocks(range(100), chain_seed("m", None, None))
    assert not set(names[0]) & set(names[1]) and not set(names[1]) & set(names[2])
    assert found[0][0] == "pdd" and len({prefix for prefix, _ in found}) == 3
