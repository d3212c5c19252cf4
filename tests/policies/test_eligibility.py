"""Eligibility: which requests may be split."""

from dataclasses import fields, replace

import pytest

from policies.eligibility import (
    OWN_ANSWER,
    REFUSABLE,
    UNSPLITTABLE,
    RequestFeatures,
    unsplittable_reason,
)
from policies.tenant_rules import SplittingRules

PLAIN = RequestFeatures(temperature=0.7, max_tokens=100)

CASES = [
    (PLAIN, None),
    (RequestFeatures(), None),
    (replace(PLAIN, structured_output=True), "structured_output"),
    (replace(PLAIN, presence_penalty=0.1), "penalty_state"),
    (replace(PLAIN, frequency_penalty=-0.1), "penalty_state"),
    (replace(PLAIN, multi_token_bad_words=True), "bad_words"),
    (replace(PLAIN, seeded=True), "seeded_sampling"),
    (replace(PLAIN, seeded=True, temperature=None), "seeded_sampling"),
    (replace(PLAIN, seeded=True, temperature=0.0), None),
    (replace(PLAIN, thinking_budget=True), "thinking_budget"),
    (replace(PLAIN, unknown_field=True), "unknown_field"),
    (replace(PLAIN, max_tokens=1), "single_token"),
    (replace(PLAIN, max_tokens=2), None),
    (replace(PLAIN, max_tokens=1, structured_output=True), "structured_output"),
]


@pytest.mark.parametrize(("features", "reason"), CASES)
def test_reason(features: RequestFeatures, reason: str | None) -> None:
    """Each feature that an engine keeps state for has its reason code; a plain request has none."""
    assert unsplittable_reason(features) == reason


REFUSED = [
    (replace(PLAIN, temperature=0.0, tools=True), "tools"),
    (replace(PLAIN, temperature=0.0, logprobs=True), "logprobs"),
    (PLAIN, "sampled"),
    (RequestFeatures(), "sampled"),
    (replace(PLAIN, temperature=0.0), None),
]


@pytest.mark.parametrize(("features", "reason"), REFUSED)
def test_refused_by_rule(features: RequestFeatures, reason: str | None) -> None:
    """What the rules name is not split either; what may never be split keeps its own reason."""
    assert unsplittable_reason(features, SplittingRules(refuse=("sampled", "tools", "logprobs"))) == reason


def test_splitting_switched_off() -> None:
    """With splitting off nothing is split, and an answer that is one token anyway is still shown from P."""
    off = SplittingRules(enabled=False)
    assert unsplittable_reason(PLAIN, off) == "splitting_off"
    assert unsplittable_reason(replace(PLAIN, max_tokens=1), off) == "single_token"


def test_every_code_and_field_is_exercised() -> None:
    """The cases above cover each code of the table and each field of a request."""
    assert {reason for _, reason in CASES} == {code for code, _ in UNSPLITTABLE} | {None}
    touched = {
        field.name
        for features, _ in CASES + REFUSED
        for field in fields(RequestFeatures)
        if getattr(features, field.name) != getattr(PLAIN, field.name)
    }
    assert touched == {field.name for field in fields(RequestFeatures)}


def test_allowed_by_rule() -> None:
    """A reason that the rules allow does not count, and no other is lifted with it."""
    features = replace(PLAIN, presence_penalty=0.5, seeded=True)
    assert unsplittable_reason(features, SplittingRules(allow=("penalty_state",))) == "seeded_sampling"
    assert unsplittable_reason(features, SplittingRules(allow=("seeded_sampling", "penalty_state"))) is None


def test_sets_name_codes_of_the_table() -> None:
    """The set that steers the plan holds known codes only, and no code is in both tables."""
    codes = {code for code, _ in UNSPLITTABLE}
    assert codes >= OWN_ANSWER
    assert not codes & {code for code, _ in REFUSABLE}
