"""The SSE parser gives the same events for every way in which the bytes are cut."""

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.transport.sse import BOM, EventTooLarge, SseParser

RECORDED = (
    BOM
    + b": ping\n\n"
    + b'data: {"a":"\xc3\xa9\xf0\x9f\x98\x80"}\n\n'
    + b"retry: 3000\r\n\r\n"
    + b"event: ping\ndata:\n\n"
    + b'data:{"no":"space"}\r\n\r\n'
    + b"id: 7\rdata:  two spaces\r\r"
    + b"data: first\ndata\r\ndata: third\r\r\n"
    + b"dataset: no\ndata: :colon\n:data: no\n\n"
    + b"data: [DONE]\n\n"
    + b"data: never ended\n"
)
EVENTS = [
    b'{"a":"\xc3\xa9\xf0\x9f\x98\x80"}',
    b'{"no":"space"}',
    b" two spaces",
    b"first\n\nthird",
    b":colon",
    b"[DONE]",
]


def parse(stream: bytes, cuts: list[int]) -> list[bytes]:
    """Feed ``stream`` cut at these offsets."""
    parser = SseParser()
    places = [0, *sorted(cuts), len(stream)]
    return [event for start, end in pairwise(places) for event in parser.feed(stream[start:end])]


@pytest.mark.parametrize("cut", range(len(RECORDED) + 1))
def test_any_single_cut_gives_the_same_events(cut: int) -> None:
    """A recorded stream cut once at any byte gives the same events."""
    assert parse(RECORDED, [cut]) == EVENTS


def test_byte_by_byte() -> None:
    """One byte at a time gives the same events."""
    assert parse(RECORDED, list(range(len(RECORDED)))) == EVENTS


line_ends = st.sampled_from([b"\n", b"\r\n", b"\r"])
payloads = st.binary(max_size=30).map(lambda value: value.replace(b"\r", b"").replace(b"\n", b""))


@given(data=st.data())
def test_what_is_written_is_read(data: st.DataObject) -> None:
    """Any payloads with any line ends, noise between them and any cuts come out as they went in."""
    stream, expected = bytearray(data.draw(st.sampled_from([b"", BOM]))), []
    for lines in data.draw(st.lists(st.lists(payloads, min_size=1, max_size=3), max_size=6)):
        noise = data.draw(st.sampled_from([b"", b": comment", b"event: x", b"id", b"retry: 1", b"data_: x"]))
        end = data.draw(line_ends)
        # CR before LF would be one line end, not two, so an event keeps to one kind of line end.
        stream += noise + end if noise else b""
        space = data.draw(st.sampled_from([b" ", b""]))
        for line in lines:
            # Without the optional space, a payload that starts with one needs it doubled.
            stream += b"data:" + (b" " if line.startswith(b" ") else space) + line + end
        stream += end
        joined = b"\n".join(lines)
        expected += [joined] if joined else []
        stream += b":\n"  # a comment keeps a CR of this event apart from an LF of the next
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=10))
    assert parse(bytes(stream), cuts) == expected


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=8))
def test_cuts_never_matter(stream: bytes, cuts: list[int]) -> None:
    """Arbitrary bytes give the same events whole and cut."""
    assert parse(stream, [min(cut, len(stream)) for cut in cuts]) == parse(stream, [])


def test_cr_is_not_held_back() -> None:
    """An event that ends in a lone CR is given at once, and a late LF adds nothing."""
    parser = SseParser()
    assert parser.feed(b"data: x\r\r") == [b"x"]
    assert parser.feed(b"") == []
    assert parser.feed(b"\ndata: y\n\n") == [b"y"]


def test_large_event_in_small_pieces_is_linear() -> None:
    """A 2 MiB event fed in 64-byte pieces is whole, and quick."""
    payload = b"x" * (2 * 1024 * 1024)
    stream = b"data: " + payload + b"\n\n"
    started = time.process_time()
    assert parse(stream, list(range(0, len(stream), 64))) == [payload]
    assert time.process_time() - started < 2


@pytest.mark.parametrize(
    "stream",
    [
        b"data: " + b"x" * 200,
        b": comment " + b"x" * 200,
        b"data: " + b"x" * 200 + b"\n\n",
        b"data: xxxxxxxx\n" * 20,
        b"data\n" * 200,
    ],
)
def test_size_is_bounded(stream: bytes) -> None:
    """A line or an event beyond the bound raises rather than growing."""
    with pytest.raises(EventTooLarge):
        SseParser(max_event_bytes=100).feed(stream)


def test_events_within_the_bound_may_go_on_for_ever() -> None:
    """The bound is one event's, not the stream's."""
    parser = SseParser(max_event_bytes=100)
    assert parser.feed(b"data: " + b"x" * 90 + b"\n\n") == [b"x" * 90]
    assert len(parser.feed(b"data: xxxxxxxx\n\n" * 1000)) == 1000
