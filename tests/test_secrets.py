"""No secret shows where an object is printed, as it would be in a log or a traceback."""

import pytest

from backends.engines.adapters import EngineSpec
from backends.engines.external import ExternalModel
from backends.kv.bridge.resp import StoreAddress
from gateway.auth.admin import AdminAuth
from gateway.auth.keys import ApiKey
from gateway.auth.tenants import TenantBook

SECRET = "s3cretword"


@pytest.mark.parametrize(
    "holder",
    [
        EngineSpec("id", "http://x", SECRET, {}),
        ExternalModel("model", None, SECRET),
        StoreAddress.parse(f"redis://user:{SECRET}@store:6379"),
        AdminAuth(key=SECRET.encode()),
        ApiKey("id", SECRET),
        TenantBook(SECRET.encode()),
    ],
)
def test_not_in_a_representation(holder: object) -> None:
    """Neither ``repr`` nor formatting tells it."""
    assert SECRET not in repr(holder)
    assert isinstance(holder, ApiKey) or SECRET not in f"{holder}"
