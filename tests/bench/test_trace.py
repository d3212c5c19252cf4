"""The walk of a token and of a request through the code stays short. Calls are counted: no busy machine moves them."""

import pytest

from tests.bench.trace import measure

MOST_TOKEN_CALLS, MOST_TOKEN_FORMS = 30, 8
"""A token takes 26 calls and makes 7 objects of the gateway's own classes."""
MOST_REQUEST_CALLS = 1_700
"""A relayed request takes some 1,400 beside its tokens."""


@pytest.mark.slow
async def test_no_token_takes_a_detour() -> None:
    """One token of a stream, and one request, take little more calls than when this was written."""
    figures = await measure(shows_all=False)
    assert figures["token_calls"] <= MOST_TOKEN_CALLS
    assert figures["token_forms"] <= MOST_TOKEN_FORMS
    assert figures["request_calls"] <= MOST_REQUEST_CALLS
