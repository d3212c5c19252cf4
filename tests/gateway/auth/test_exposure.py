"""What is open to whom, as the settings have it."""

from typing import Any

import pytest

from gateway.auth.exposure import find_admin_access, read_tls
from gateway.config.fleet_settings import BadSettings
from gateway.config.settings import find_proxies, parse_settings

BASE: dict[str, Any] = {
    "models": [{"name": "m", "path": "/m", "kv_bytes_per_token": 1}],
    "engines": [{"id": "p", "role": "P", "model": "m", "region": "a", "url": "http://p"}],
}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """One key that is good and one that is short."""
    monkeypatch.setenv("PDD_TEST_ADMIN", "0123456789abcdef")
    monkeypatch.setenv("PDD_TEST_SHORT", "short")


@pytest.mark.parametrize(
    ("settings", "beside_api", "own"),
    [
        ({}, "open", "shut"),
        ({"listen": "0.0.0.0:80"}, "shut", "shut"),
        ({"auth": {"secret_env": "PDD_TEST_ADMIN"}}, "shut", "shut"),
        ({"trusted_proxies": ["10.0.0.0/8"]}, "shut", "shut"),
        ({"admin": {"key_env": "PDD_TEST_ADMIN"}}, "key", "shut"),
        ({"listen": "0.0.0.0:80", "admin": {"key_env": "PDD_TEST_ADMIN"}}, "key", "shut"),
        ({"admin": {"listen": "127.0.0.1:81"}}, "shut", "open"),
        ({"listen": "0.0.0.0:80", "admin": {"listen": "[::1]:81"}}, "shut", "open"),
        ({"admin": {"listen": "0.0.0.0:81", "key_env": "PDD_TEST_ADMIN"}}, "shut", "key"),
        ({"admin": {"listen": "0.0.0.0:81", "open": True}}, "shut", "open"),
        ({"listen": "0.0.0.0:80", "admin": {"open": True}}, "shut", "shut"),
    ],
)
def test_admin_access(settings: dict[str, Any], beside_api: str, own: str) -> None:
    """The operator's pages are open on loopback alone, have a key elsewhere, and may have a listener of their own."""
    access = find_admin_access(parse_settings(BASE | settings))
    seen = ["open" if one.is_open else "key" if one.key else "shut" for one in (access.beside_api, access.own)]
    assert seen == [beside_api, own]


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"admin": {"listen": "0.0.0.0:81"}}, "admin.key_env"),
        ({"admin": {"listen": "10.0.0.1:81"}}, "admin.key_env"),
        ({"admin": {"key_env": "PDD_TEST_SHORT"}}, "admin.key_env"),
        ({"admin": {"key_env": "PDD_TEST_NONE"}}, "admin.key_env"),
        ({"admin": {"listen": "nowhere"}}, "admin.listen"),
        ({"admin": {"listen": "0.0.0.0:81", "key_env": "PDD_TEST_ADMIN", "open": True}}, "admin.open"),
        ({"trusted_proxies": ["10.0.0.1/8"]}, r"trusted_proxies\[0\]"),
        ({"trusted_proxies": ["::/0", "proxy"]}, r"trusted_proxies\[1\]"),
        ({"tls": {"cert_file": "/none", "key_file": "/none"}}, "tls.cert_file"),
        ({"tls": {"cert_file": "/none"}}, "key_file"),
    ],
)
def test_bad_settings_stop_the_start(settings: dict[str, Any], name: str) -> None:
    """What would leave a page open, or cannot work, is refused by its key's name; no secret is in the message."""
    with pytest.raises(BadSettings, match=name) as refused:
        parsed = parse_settings(BASE | settings)
        find_proxies(parsed)
        find_admin_access(parsed)
        read_tls(parsed)
    assert "short" not in str(refused.value)
