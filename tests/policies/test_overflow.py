"""When an external provider answers."""

import pytest

from policies.route import choose_overflow
from policies.rules import parse_rules
from policies.types import InstanceView, Role
from tests.policies.build import instance


def views(*loads: int, healthy: bool = True) -> list[InstanceView]:
    """Main-decode instances with so many of 8 places taken, and a P that is idle."""
    mains = [instance(f"md{i}", Role.MD, running=load, max_running=8, healthy=healthy) for i, load in enumerate(loads)]
    return [*mains, instance("p", Role.P)]


@pytest.mark.parametrize(
    ("rules", "loads", "refused", "reason"),
    [
        ({}, (8,), True, None),
        ({"when": "always"}, (0,), True, None),
        ({"model": "m"}, (8,), False, None),
        ({"model": "m"}, (8,), True, "no_instance"),
        ({"model": "m", "when": "overloaded"}, (8, 9), False, "overloaded"),
        ({"model": "m", "when": "overloaded"}, (8, 7), False, None),
        ({"model": "m", "when": "overloaded", "load_max": 0.5}, (4, 4), False, "overloaded"),
        ({"model": "m", "when": "overloaded"}, (), False, None),
        ({"model": "m", "when": "overloaded"}, (), True, "no_instance"),
        ({"model": "m", "when": "always"}, (0,), False, "always"),
    ],
)
def test_choice(rules: dict[str, object], loads: tuple[int, ...], refused: bool, reason: str | None) -> None:
    """Each rule sends away what it names, and nothing without a model."""
    assert choose_overflow(views(*loads), parse_rules({"overflow": rules}), refused=refused) == reason


def test_instances_that_are_down_do_not_count() -> None:
    """Load is that of the instances that could answer."""
    rules = parse_rules({"overflow": {"model": "m", "when": "overloaded"}})
    assert choose_overflow(views(9, healthy=False) + views(8), rules, refused=False) == "overloaded"
    assert choose_overflow(views(9, healthy=False) + views(0), rules, refused=False) is None


@pytest.mark.parametrize("when", ["no_instance", "overloaded", "always"])
def test_a_pinned_tenant_stays(when: str) -> None:
    """Pinning to regions forbids every way out of them."""
    rules = parse_rules({"regions": ["east"], "overflow": {"model": "m", "when": when}})
    assert choose_overflow(views(8), rules, refused=True) is None
