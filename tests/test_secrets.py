"""No secret shows where an object is printed, as it would be in a log or a traceback."""

import pytest

from backends.adapters import EngineSpec
from backends.bridge.resp import StoreAddress
from backends.external import ExternalModel
from gateway.api.door import AdminAuth
from gateway.control.tenants.book import TenantBook
from gateway.control.tenants.keys import ApiKey

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
