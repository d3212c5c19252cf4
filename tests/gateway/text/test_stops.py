"""Stop strings over text in pieces."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.text.stops import StopMatcher

LETTERS = "abc"


def first_match(text: str, stop: list[str]) -> tuple[int, int] | None:
    """Return (start, end) of the match that ends first, the longest of those."""
    found = [(text.index(s) + len(s), -len(s)) for s in stop if s in text]
    if not found:
        return None
    end, negative = min(found)
    return end + negative, end


def cut(text: str, points: list[int]) -> list[str]:
    """Cut a text at the points."""
    edges = [0, *sorted(min(point, len(text)) for point in points), len(text)]
    return [text[start:end] for start, end in pairwise(edges)]


@given(
    st.text(LETTERS, max_size=60),
    st.lists(st.text(LETTERS, min_size=1, max_size=6), max_size=4),
    st.lists(st.integers(0, 60), max_size=12),
    st.booleans(),
)
def test_cut_at_first_match(text: str, stop: list[str], points: list[int], include: bool) -> None:
    """Whatever the pieces, the text is cut at the first match, and all of it is shown when there is none."""
    matcher = StopMatcher(stop, include_stop_str_in_output=include)
    shown = "".join(matcher.push(piece) for piece in cut(text, points)) + matcher.flush()
    match = first_match(text, stop)
    if match is None:
        assert (shown, matcher.stopped) == (text, None)
    else:
        start, end = match
        assert (shown, matcher.stopped) == (text[: end if include else start], text[start:end])


@given(st.text(LETTERS, max_size=40), st.lists(st.text(LETTERS, min_size=1, max_size=6), min_size=1, max_size=3))
def test_holds_back_no_more_than_needed(text: str, stop: list[str]) -> None:
    """What is held back is always the beginning of a stop string, and the longest such."""
    matcher = StopMatcher(stop)
    shown = ""
    for at, letter in enumerate(text):
        shown += matcher.push(letter)
        if matcher.stopped:
            return
        seen = text[: at + 1]
        longest = max(n for s in stop for n in range(len(s)) if seen.endswith(s[:n]))
        assert len(seen) - len(shown) == longest


def test_minimum_length_passes_a_match_over() -> None:
    """A stop string completed before the minimum length is text; a later one counts."""
    matcher = StopMatcher(["END"])
    assert matcher.push("xEND", may_stop=False) == "xEND"
    assert matcher.push("yEND") == "y"
    assert matcher.stopped == "END"


def test_nothing_after_a_match() -> None:
    """Once a stop string was found nothing more is shown."""
    matcher = StopMatcher(["."])
    assert [matcher.push("a."), matcher.push("b"), matcher.flush()] == ["a", "", ""]


@pytest.mark.parametrize("stop", [["</think>"], ["zzz", "</think>"]])
def test_marker_over_two_pieces(stop: list[str]) -> None:
    """A marker cut by chunks is found like a whole one."""
    matcher = StopMatcher(stop)
    assert [matcher.push("well</thin"), matcher.push("k>no")] == ["well", ""]
    assert matcher.stopped == "</think>"


def test_long_repetitive_stop_string() -> None:
    """A stop string of one repeated letter costs no more than another."""
    matcher = StopMatcher(["a" * 5000 + "b"])
    shown = "".join(matcher.push("a" * 1000) for _ in range(30))
    assert len(shown) == 25_000
