"""One number for the context."""

import pytest

from gateway.text.context import UNKNOWN_TOKENS, ContextLength


@pytest.mark.parametrize(
    ("fixed", "configured", "told", "tokens"),
    [
        (None, 40960, [8192, 16384], 8192),
        (None, 8192, [131072], 131072),
        (None, None, [4096], 4096),
        (None, 4096, [], 4096),
        (100, 4096, [8192], 100),
        (9000, 4096, [8192], 9000),
        (None, None, [], None),
    ],
)
def test_who_says_it(fixed: int | None, configured: int | None, told: list[int], tokens: int | None) -> None:
    """The settings say it, or else the engine that takes the least; config.json only while no engine has."""
    context = ContextLength(fixed, configured)
    context.follow(lambda: told)
    assert context.known_tokens == tokens
    assert context.tokens == (tokens or UNKNOWN_TOKENS)
