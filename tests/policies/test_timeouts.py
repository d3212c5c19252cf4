"""How long an extend's first token is waited for."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.rules import RelayRules
from policies.timeouts import MULTIPLE, Extend, first_token_wait_s

RULES = RelayRules(extend_timeout_s=30, extend_floor_s=3)
SMALL = Extend(tokens=100, ahead_tokens=0, kv_bytes=0, tokens_per_s=1000.0)


def test_an_unmeasured_main_has_all_the_time() -> None:
    """Where MD's speed is not known only the limit ends the wait."""
    assert first_token_wait_s(replace(SMALL, tokens_per_s=None), RULES) == 30


def test_little_to_do_is_waited_for_as_long_as_the_floor() -> None:
    """SPL-46: an extend of a tenth of a second is given up after the floor, not after the limit."""
    assert first_token_wait_s(SMALL, RULES) == 3


@pytest.mark.parametrize(
    ("change", "expected_s"),
    [
        ({"tokens": 2000}, 2.0),
        ({"ahead_tokens": 1900}, 2.0),
        ({"kv_bytes": 2_000_000_000}, 2.1),
        ({"rtt_s": 1.5}, 1.6),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_whatever_takes_time_is_waited_for(change: dict[str, float], expected_s: float) -> None:
    """Tokens to compute, its own and those before it, KV to load and the way there count, each several times over."""
    assert first_token_wait_s(replace(SMALL, **change), RULES) == pytest.approx(MULTIPLE * expected_s)  # type: ignore[arg-type]


def test_queued_and_silent_mains_get_more() -> None:
    """Each request in MD's queue adds the whole wait again, and each silence in the same answer doubles it."""
    assert first_token_wait_s(replace(SMALL, waiting=2), RULES) == 9
    assert first_token_wait_s(replace(SMALL, silences=2), RULES) == 12
    assert first_token_wait_s(replace(SMALL, silences=10_000), RULES) == 30


@given(
    tokens=st.integers(0, 10**7),
    waiting=st.integers(0, 1000),
    silences=st.integers(0, 100),
    speed=st.floats(0.1, 1e6),
    limit_s=st.floats(0.01, 600),
)
def test_never_beyond_the_limit_nor_shorter_than_expected(
    tokens: int, waiting: int, silences: int, speed: float, limit_s: float
) -> None:
    """The limit holds whatever is to do; below it the wait is neither under the floor nor under what is expected."""
    rules = RelayRules(extend_timeout_s=limit_s, extend_floor_s=3)
    extend = Extend(tokens, 0, 0, speed, waiting=waiting, silences=silences)
    wait_s = first_token_wait_s(extend, rules)
    assert wait_s <= limit_s
    assert wait_s == limit_s or wait_s >= max(3.0, tokens / speed)
