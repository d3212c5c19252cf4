"""Rule documents: layers, canaries, and the paths of what is wrong in them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.rule_documents import TenantRules, build_rules, merge
from policies.rules import BadRules, Rules, parse_rules

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(0, 9) | st.lists(st.integers(0, 3), max_size=2),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.sampled_from("abc"), JSON, max_size=3)


def test_layers_are_merged_field_by_field() -> None:
    """A tenant's document changes the fields that it names; the default's others and the built-in rest stay."""
    built = build_rules(
        {"handoff": {"mode": "one_shot", "max_rounds": 3}, "regions": ["a", "b"]},
        {"handoff": {"max_rounds": 4}, "regions": ["a"], "limits": {"concurrent": 2}},
    )
    expected = {"handoff": {"mode": "one_shot", "max_rounds": 4}, "regions": ["a"], "limits": {"concurrent": 2}}
    assert built == TenantRules(parse_rules(expected))
    assert build_rules() == TenantRules(Rules())


def test_null_takes_a_limit_away() -> None:
    """Null is a value of its own: it replaces what a lower layer says."""
    assert build_rules({"regions": ["a"]}, {"regions": None}).stable.regions is None


@given(OBJECTS, OBJECTS, OBJECTS)
def test_merging(one: dict[str, Any], two: dict[str, Any], three: dict[str, Any]) -> None:
    """An empty layer changes nothing, a layer over itself neither, and merging leaves its arguments as they were."""
    before = repr((one, two))
    assert merge(one, {}) == merge({}, one) == merge(one, one) == one
    merged = merge(one, two)
    assert repr((one, two)) == before
    assert merged.keys() == one.keys() | two.keys()
    assert merge(merged, two) == merged
    flat = {name: value for name, value in three.items() if not isinstance(value, dict)}
    assert merge(merged, flat) == merged | flat


@pytest.mark.parametrize(
    ("layers", "path"),
    [
        (([],), ""),
        (({}, None), ""),
        (({"handof": {}},), "handof"),
        (({"limits": {"concurrent": 0}},), "limits.concurrent"),
        (({"regions": []},), "regions"),
        (({"models": {"aliases": {"x": 1}}},), "models.aliases[...]"),
        (({"canary": {"rules": {}}},), "canary"),
        (({"canary": {"share": 2, "rules": {}}},), "canary.share"),
        (({"canary": {"share": 0.1, "rules": {}, "x": 1}},), "canary.x"),
        (({"canary": {"share": 0.1, "rules": {"handoff": {"mod": 1}}}},), "canary.rules.handoff.mod"),
        (({"canary": {"share": 0.1, "rules": {"canary": {}}}},), "canary.rules.canary"),
        (({"canary": {"share": 0.1, "rules": {"pipelines": ["relay", "relay"]}}},), "canary.rules"),
    ],
)
def test_wrong_field_is_named(layers: tuple[Any, ...], path: str) -> None:
    """What is wrong in any layer is refused with its path, inside a canary too."""
    with pytest.raises(BadRules) as caught:
        build_rules(*layers)
    assert caught.value.path == path


def test_canary_is_merged_over_the_rest() -> None:
    """A canary's rules differ from the others in what it names; a tenant's layer may change the default's canary."""
    built = build_rules(
        {"pipelines": ["direct"], "canary": {"share": 0.5, "rules": {"handoff": {"mode": "one_shot"}}}},
        {"canary": {"share": 1.0, "rules": {"direct_classic": True}}},
    )
    assert built.stable == parse_rules({"pipelines": ["direct"]})
    assert built.canary == parse_rules(
        {"pipelines": ["direct"], "handoff": {"mode": "one_shot"}, "direct_classic": True}
    )
    assert built.share == 1.0
    assert build_rules({"canary": {"share": 0.5, "rules": {}}}, {"canary": None}).canary is None


def shares(share: float, tenant: str = "t") -> list[bool]:
    """Whether each of 4000 requests gets the canary."""
    built = build_rules({"canary": {"share": share, "rules": {"direct_classic": True}}})
    return [built.of(tenant, f"request-{number}").direct_classic for number in range(4000)]


def test_canary_share_is_stable() -> None:
    """The share is met, holds the same requests each time, grows around the smaller one, and differs by tenant."""
    few, more = shares(0.1), shares(0.3)
    assert 0.08 < sum(few) / 4000 < 0.12 and 0.27 < sum(more) / 4000 < 0.33
    assert few == shares(0.1)
    assert all(late for early, late in zip(few, more, strict=True) if early)
    assert few != shares(0.1, "u")
    assert not any(shares(0.0)) and all(shares(1.0))
