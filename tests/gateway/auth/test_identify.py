"""Who asks, as it is read from a request."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection

from gateway.auth.failures import Failures
from gateway.auth.identify import KeyCheck, identify_anyone, read_keys
from gateway.auth.keys import make_key
from gateway.auth.tenants import TenantBook, TenantRecord
from gateway.errors import GatewayError
from tests.gateway.auth.test_tenants import SECRET, document, key_document
from tests.gateway.fleet.seams import Clock

KEY, OTHER = make_key(), make_key()


def connection(*headers: tuple[str, str], peer: str | None = "10.0.0.1") -> HTTPConnection:
    """A request as the server hands it on."""
    lines = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers]
    return HTTPConnection({"type": "http", "headers": lines, "client": (peer, 1) if peer else None})


@pytest.fixture
def check() -> KeyCheck:
    """A check with two tenants, each with a key."""
    book = TenantBook(SECRET)
    tenants = [document("tenant", name, TenantRecord()) for name in ("acme", "other")]
    book.apply([*tenants, key_document(KEY), key_document(OTHER, tenant="other")])
    return KeyCheck(book, Failures(2, Clock(0.0)))


@pytest.mark.parametrize(
    "headers",
    [
        [("Authorization", f"Bearer {KEY}")],
        [("authorization", f"bearer  {KEY}")],
        [("x-api-key", str(KEY))],
        [("Authorization", f"Bearer {KEY}"), ("X-Api-Key", str(KEY))],
        [("Authorization", "Basic Zm9vOmJhcg=="), ("X-Api-Key", str(KEY))],
    ],
)
def test_key_is_found(check: KeyCheck, headers: list[tuple[str, str]]) -> None:
    """A key is taken from either header, or from both where they agree."""
    assert check(connection(*headers)) == "acme"


@pytest.mark.parametrize("foreign", ["sk-ant-oat01-abc", "pd", str(make_key())], ids=["others", "short", "unknown"])
def test_a_foreign_key_beside_a_good_one(check: KeyCheck, foreign: str) -> None:
    """SEC-102: Authorization is looked at first; the good key decides everything, wherever a foreign one stands."""
    assert check(connection(("authorization", f"Bearer {KEY}"), ("x-api-key", foreign))) == "acme"
    assert check(connection(("authorization", f"Bearer {foreign}"), ("x-api-key", str(KEY)))) == "acme"


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ([], 401, "invalid_api_key"),
        ([("authorization", "Bearer ")], 401, "invalid_api_key"),
        ([("authorization", f"Bearer {make_key()}")], 401, "invalid_api_key"),
        ([("authorization", f"Bearer {KEY}, Bearer {KEY}")], 401, "invalid_api_key"),
        ([("authorization", f"Bearer {KEY}"), ("x-api-key", str(OTHER))], 401, "invalid_api_key"),
        ([("authorization", f"Bearer {OTHER}"), ("x-api-key", str(KEY))], 401, "invalid_api_key"),
        ([("authorization", f"Bearer {make_key()}"), ("x-api-key", str(make_key()))], 401, "invalid_api_key"),
        ([("authorization", f"Bearer {KEY}")] * 2, 400, "duplicate_header"),
        ([("x-api-key", str(KEY)), ("x-api-key", str(make_key()))], 400, "duplicate_header"),
    ],
)
def test_everything_else_is_refused(check: KeyCheck, headers: list[tuple[str, str]], status: int, code: str) -> None:
    """No key, bad ones, two good ones that differ, or one header twice: nobody is let in, and no key is echoed."""
    with pytest.raises(GatewayError) as caught:
        check(connection(*headers))
    assert (caught.value.status, caught.value.code) == (status, code)
    assert "pdd_" not in caught.value.message


@pytest.mark.parametrize(
    "name", ["X-Tenant-Id", "x-tenant", "x_tenant_id", "X-User", "X-Priority", "OpenAI-Organization"]
)
def test_headers_do_not_make_a_tenant(check: KeyCheck, name: str) -> None:
    """TEN-09: whatever identity headers a client adds, the key alone says who it is."""
    extra = [(name, "other"), (name, "other, acme")]
    assert check(connection(("authorization", f"Bearer {KEY}"), *extra)) == "acme"
    with pytest.raises(GatewayError):
        check(connection(*extra))


def test_failures_are_slowed_down_but_not_good_keys(check: KeyCheck) -> None:
    """After too many failures an address is told to wait; a good key from there still opens, other addresses too."""
    for _ in range(2):
        with pytest.raises(GatewayError) as caught:
            check(connection())
        assert caught.value.status == 401
    with pytest.raises(GatewayError) as caught:
        check(connection())
    assert (caught.value.status, caught.value.retry_after_s) == (429, 30.0)
    assert check(connection(("x-api-key", str(KEY)))) == "acme"
    with pytest.raises(GatewayError) as caught:
        check(connection(peer=None))
    assert caught.value.status == 401


def test_disabled_and_unknown_yet(check: KeyCheck) -> None:
    """A disabled tenant is a 403; before the tenants were read nobody's key is called bad."""
    check.book.apply([document("tenant", "acme", TenantRecord(disabled=True)), key_document(KEY)])
    with pytest.raises(GatewayError) as caught:
        check(connection(("x-api-key", str(KEY))))
    assert (caught.value.status, caught.value.code) == (403, "tenant_disabled")
    with pytest.raises(GatewayError) as caught:
        KeyCheck(TenantBook(SECRET), Failures(1))(connection(("x-api-key", str(KEY))))
    assert (caught.value.status, caught.value.retry_after_s) == (503, 1.0)


def test_open_mode_is_one_tenant() -> None:
    """Where no keys are asked for, everybody is the same tenant, with any key."""
    assert identify_anyone(connection(("authorization", "Bearer any"))) == "default"


@given(
    st.lists(
        st.tuples(st.sampled_from(["authorization", "x-api-key", "other"]), st.text("Bearer pd_é,\t", max_size=12))
    )
)
def test_reading_a_key_raises_nothing_else(lines: list[tuple[str, str]]) -> None:
    """Any headers give a key, none, or an error for the client."""
    raw = [(name.encode(), value.encode("latin-1")) for name, value in lines]
    try:
        keys = read_keys(Headers(raw=raw))
    except GatewayError as error:
        assert error.status in (400, 401)
    else:
        assert all(any(key in value for _, value in lines) for key in keys)
