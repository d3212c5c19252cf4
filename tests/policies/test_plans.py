"""What follows from a plan."""

import pytest

from policies.plans import Direct, PassThrough, Plan, Relay, Singular
from policies.rules import RelayRules, Rules
from policies.types import Estimate, Role
from tests.policies.build import rules

ROUTE = ("a", "b")
DIRECT = Direct("p1", "m1", "short_transfer", ROUTE)
RELAY = Relay("p1", "r1", "m1", "wan_slow", ROUTE)
FUSED = Relay("p1", None, "m1", "fused", ROUTE, fused=True)
SINGULAR = Singular("p1", "r1", "singular")
PASSTHROUGH = PassThrough("m1", "echo")


@pytest.mark.parametrize(
    ("plan", "kind", "roles"),
    [
        (DIRECT, "direct", {Role.P: "p1", Role.MD: "m1"}),
        (RELAY, "relay", {Role.P: "p1", Role.RLD: "r1", Role.MD: "m1"}),
        (FUSED, "relay", {Role.P: "p1", Role.MD: "m1"}),
        (SINGULAR, "singular", {Role.P: "p1", Role.RLD: "r1"}),
        (PASSTHROUGH, "passthrough", {Role.MD: "m1"}),
    ],
)
def test_roles(plan: Plan, kind: str, roles: dict[Role, str]) -> None:
    """A plan names itself, and who fills its roles in the order in which they are called."""
    assert plan.kind == kind
    assert list(plan.roles.items()) == list(roles.items())
    assert plan.instances == set(roles.values())


@pytest.mark.parametrize(
    ("plan", "follows"),
    [
        (DIRECT, {"has_prefill", "moves_kv"}),
        (RELAY, {"has_prefill", "moves_kv", "relays_first"}),
        (FUSED, {"has_prefill", "moves_kv", "relays_first"}),
        (SINGULAR, {"has_prefill", "relays_first", "ends_on_relay"}),
        (PASSTHROUGH, set()),
    ],
)
def test_what_follows(plan: Plan, follows: set[str]) -> None:
    """Who is called first, whether RLD goes on after P and to the end, and whether KV moves, follows from the roles."""
    flags = ("has_prefill", "moves_kv", "relays_first", "ends_on_relay")
    assert {flag for flag in flags if getattr(plan, flag)} == follows


@pytest.mark.parametrize("plan", [DIRECT, RELAY, FUSED, SINGULAR, PASSTHROUGH])
def test_only_direct_can_be_classic(plan: Plan) -> None:
    """P's token is shown unless a direct plan says otherwise."""
    assert not plan.classic
    assert Direct("p1", "m1", "seeded_sampling", classic=True).classic


@pytest.mark.parametrize(
    ("bound_s", "total_s", "patience_s"),
    [(0.5, None, 1.5), (0.1, None, 1.0), (0.5, 0.2, 1.5), (0.5, 4.0, 12.0), (0.0, 0.0, 1.0)],
)
def test_direct_waits_a_few_times_what_was_expected(bound_s: float, total_s: float | None, patience_s: float) -> None:
    """Direct waits three times the bound or the estimate, whichever is longer, and never less than a second."""
    given = rules(direct_wan_bound_s=bound_s)
    expected = None if total_s is None else Estimate(0, 0, 0, 0.0, 0.0, 0.0, total_s, total_s)
    assert DIRECT.kv_patience_s(expected, given) == pytest.approx(patience_s)


def test_direct_with_an_unknown_hit_waits_by_the_bound() -> None:
    """An estimate without a total, as MD's hit is unknown, adds nothing to the bound."""
    unknown = Estimate(None, 0, None, None, None, 0.03, None, 9.0)
    assert DIRECT.kv_patience_s(unknown, rules(direct_wan_bound_s=2.0)) == 6.0


@pytest.mark.parametrize("plan", [RELAY, SINGULAR, PASSTHROUGH])
def test_others_wait_as_for_an_extend(plan: Plan) -> None:
    """A plan whose answer goes on meanwhile has the time of an extend."""
    assert plan.kv_patience_s(None, Rules(relay=RelayRules(extend_timeout_s=7.0))) == 7.0
