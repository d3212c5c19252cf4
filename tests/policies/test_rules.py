"""Rules: defaults, limits, the path of a wrong field, the schema."""

from collections.abc import Iterator
from typing import Any, Literal

import msgspec
import pytest

from policies.rule_documents import document_schema
from policies.rules import BadRules, HandoffRules, Rules, parse_rules
from policies.section import Section, add_choices


def leaves(section: Section, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every field that is not a section, as a dotted path, with its default."""
    for name in section.__struct_fields__:
        value = getattr(section, name)
        if isinstance(value, Section):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def nested(path: str, value: Any) -> dict[str, Any]:
    """An object with one field set."""
    head, _, rest = path.partition(".")
    return {head: nested(rest, value) if rest else value}


FLOATS = [path for path, value in leaves(Rules()) if isinstance(value, float)]
NUMBERS = [path for path, value in leaves(Rules()) if isinstance(value, int | float) and not isinstance(value, bool)]


def test_nothing_given_means_defaults() -> None:
    """An empty object gives the documented defaults."""
    assert parse_rules({}) == Rules()


def test_one_field_leaves_the_others() -> None:
    """A section with one field keeps the other fields' defaults, weights of a role included."""
    parsed = parse_rules({"placement": {"main": {"prefix": 3.0}}})
    assert parsed.placement.main.prefix == 3.0
    assert parsed.placement.main.wan == Rules().placement.main.wan
    assert parsed.placement.prefill == Rules().placement.prefill


@pytest.mark.parametrize(
    ("given", "path"),
    [
        (None, ""),
        ([], ""),
        ({"handof": {}}, "handof"),
        ({"handoff": {"treshold": 1}}, "handoff.treshold"),
        ({"handoff": {"threshold_tokens": "64k"}}, "handoff.threshold_tokens"),
        ({"handoff": {"threshold_tokens": -1}}, "handoff.threshold_tokens"),
        ({"handoff": {"threshold_tokens": True}}, "handoff.threshold_tokens"),
        ({"handoff": {"mode": "both"}}, "handoff.mode"),
        ({"handoff": {"batch_tokens": 0}}, "handoff.batch_tokens"),
        ({"singular": {"budget": 0.26}}, "singular.budget"),
        ({"singular": {"max_hit": 1.01}}, "singular.max_hit"),
        ({"singular": {"max_hit": -0.01}}, "singular.max_hit"),
        ({"singular": {"max_output_tokens": 0}}, "singular.max_output_tokens"),
        ({"placement": {"relay": {"wan": 1.0}}}, "placement.relay.wan"),
        ({"placement": {"relay": {"prefix": 0, "queue": 0, "kv": 0, "session": 0}}}, "placement.relay"),
        ({"relay": {"transfer_retry_backoff_s": 20.0}}, "relay"),
        ({"relay": {"max_attempts": 0}}, "relay.max_attempts"),
        ({"pipelines": []}, "pipelines"),
        ({"pipelines": ["relay", "relay"]}, ""),
        ({"direct_wan_bound_s": None}, "direct_wan_bound_s"),
    ],
)
def test_wrong_field_is_named(given: Any, path: str) -> None:
    """POL-10: rules with a wrong field are refused whole, with the field's path."""
    with pytest.raises(BadRules) as caught:
        parse_rules(given)
    assert caught.value.path == path
    assert caught.value.message
    assert str(caught.value).startswith(path)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"handoff": {"mode": "both"}}, "auto, catch_up, one_shot"),
        ({"pipelines": ["rld"]}, "direct, relay"),
        ({"priority": "urgent"}, "high, low, normal"),
    ],
)
def test_a_wrong_word_is_answered_with_the_right_ones(given: Any, words: str) -> None:
    """Where only certain words may stand, the refusal lists them."""
    with pytest.raises(BadRules, match=f"; it may be {words}$"):
        parse_rules(given)


class Shelf(Section, frozen=True):
    """Words inside a dict, which may also be null."""

    by_name: dict[str, Literal["a", "b"] | None]


def test_choices_are_found_behind_any_key() -> None:
    """A word in a dict of words is answered with the right ones, at its place; other messages stay as they are."""
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert({"by_name": {"x": "c"}}, Shelf)
    assert add_choices(str(caught.value), Shelf) == "Invalid enum value 'c'; it may be a, b - at `$.by_name[...]`"
    assert add_choices("Expected `str`", Shelf) == "Expected `str`"


@pytest.mark.parametrize("pipeline", ["singular", "rld", "p_rld", "prefill_relay", "relay_only"])
def test_relay_alone_cannot_be_written(pipeline: str) -> None:
    """POL-10: no pipeline that ends at RLD can be named in the rules."""
    with pytest.raises(BadRules) as caught:
        parse_rules({"pipelines": ["direct", pipeline]})
    assert caught.value.path == "pipelines[1]"


@pytest.mark.parametrize("path", FLOATS)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), -1.0])
def test_numbers_must_be_finite_and_not_negative(path: str, value: float) -> None:
    """NaN, infinities and negative numbers are refused everywhere."""
    with pytest.raises(BadRules) as caught:
        parse_rules(nested(path, value))
    assert caught.value.path == path


@pytest.mark.parametrize("path", NUMBERS)
def test_absurd_numbers_are_refused(path: str) -> None:
    """Every number has an upper limit."""
    with pytest.raises(BadRules):
        parse_rules(nested(path, 10**15))


@pytest.mark.parametrize(("value", "seconds"), [(0, 0.0), (0.0, 0.0), (3600, 3600.0)])
def test_bound_edges_are_accepted(value: float, seconds: float) -> None:
    """Both ends of a closed range are allowed, as an integer too."""
    assert parse_rules({"direct_wan_bound_s": value}).direct_wan_bound_s == seconds


def test_rules_are_frozen() -> None:
    """Rules in use cannot be changed."""
    with pytest.raises(AttributeError):
        Rules().direct_classic = True  # type: ignore[misc]


def test_every_field_is_described() -> None:
    """The schema describes each field that is not a section, and each section."""
    definitions = document_schema()["$defs"]
    for definition in definitions.values():
        assert definition["description"]
        for name, field in definition["properties"].items():
            inner = [field, *field.get("anyOf", []), *field.get("allOf", [])]
            assert any("description" in part or "$ref" in part for part in inner), name


@pytest.mark.parametrize(
    ("promised", "seen", "met"),
    [
        ({}, (5.0, 30.0, 99.0), True),
        ({}, (5.01, 30.0, 0.0), False),
        ({}, (5.0, 30.01, 0.0), False),
        ({"gap_s": 0.5}, (1.0, 1.0, 0.51), False),
        ({"ttft_s": None}, (99.0, 30.0, 0.0), True),
        ({"total_s": None}, (1.0, 99.0, 0.0), True),
        ({"ttft_s": None, "total_s": None}, (99.0, 99.0, 99.0), None),
        ({"ttft_s": None, "total_s": None, "gap_s": 1.0}, (99.0, 99.0, 1.0), True),
    ],
)
def test_an_answer_meets_all_that_is_promised(
    promised: dict[str, Any], seen: tuple[float, float, float], met: bool | None
) -> None:
    """Each time that is promised must hold, up to its very bound; where nothing is promised nothing is judged."""
    slo = parse_rules({"slo": promised}).slo
    assert slo.judge(*seen) is met
    assert slo.judge_failure() is (None if met is None else False)


def test_hand_off_defaults_keep_the_joint_short() -> None:
    """The default threshold is small enough that the last extend goes unseen."""
    assert 8 <= HandoffRules().threshold_tokens <= 16
