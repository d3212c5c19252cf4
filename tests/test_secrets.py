"""No secret shows where an object is printed, as it would be in a log or a traceback."""

import pytest

from backends.adapters import EngineSpec
from backends.bridge.resp import Address
from backends.external import ExternalModel
from gateway.api.door import Door
from gateway.control.tenants.book import TenantBook
from gateway.control.tenants.keys import Key

SECRET = "s3cretword"


@pytest.mark.parametrize(
    "holder",
    [
        EngineSpec("id", "http://x", SECRET, {}),
        ExternalModel("model", None, SECRET),
        Address.parse(f"redis://user:{SECRET}@store:6379"),
        Door(key=SECRET.encode()),
        Key("id", SECRET),
        TenantBook(SECRET.encode()),
    ],
)
def test_not_in_a_representation(holder: object) -> None:
    """Neither ``repr`` nor formatting tells it."""
    assert SECRET not in repr(holder)
    assert isinstance(holder, Key) or SECRET not in f"{holder}"
