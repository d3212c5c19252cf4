"""Where a tenant's prompts may be."""

import pytest

from policies.rules import Rules
from policies.where import ANYWHERE, Where
from tests.policies.build import rules


@pytest.mark.parametrize("region", ["a", "b", None])
def test_nothing_is_forbidden_without_a_rule(region: str | None) -> None:
    """Rules that name no regions allow every place, known or not."""
    where = Where.of(Rules())
    assert where == ANYWHERE
    assert where.allows(region) and not where.is_bound


@pytest.mark.parametrize(("region", "allowed"), [("a", True), ("b", True), ("c", False), (None, False)])
def test_a_pinned_tenant_stays_in_its_regions(region: str | None, allowed: bool) -> None:
    """Only the regions that are named are allowed, and a place without a known region is in none of them."""
    where = Where.of(rules(regions=["a", "b"]))
    assert where.allows(region) is allowed
    assert where.is_bound
