"""Order of messages."""

from gateway.index.engine_blocks import Mark
from gateway.index.sequence import Verdict, Watermark


def test_messages_are_placed() -> None:
    """The next number is next; a later one is behind a gap; the same bytes are a duplicate, others a restart."""
    watermark = Watermark()
    assert watermark.mark() is None
    assert watermark.judge(0, b"a") is Verdict.NEXT
    assert watermark.judge(1, b"b") is Verdict.GAP
    watermark.take(0, b"a")
    assert watermark.judge(0, b"a") is Verdict.DUPLICATE
    assert watermark.judge(0, b"x") is Verdict.RESTART
    assert watermark.judge(1, b"b") is Verdict.NEXT


def test_another_process_goes_on_from_a_mark() -> None:
    """A mark carries the last message over; older ones are not remembered, so they look like a restart."""
    watermark = Watermark()
    for number in range(3):
        watermark.take(number, b"%d" % number)
    heir = Watermark(watermark.mark())
    assert heir.mark() == watermark.mark() == Mark(2, watermark._seen[2])
    assert heir.judge(2, b"2") is Verdict.DUPLICATE
    assert heir.judge(3, b"3") is Verdict.NEXT
    assert heir.judge(1, b"1") is Verdict.RESTART


def test_memory_is_bounded() -> None:
    """Only so many messages are remembered."""
    watermark = Watermark()
    for number in range(20_000):
        watermark.take(number, b"")
    assert watermark.judge(0, b"") is Verdict.RESTART
    assert watermark.judge(19_999, b"") is Verdict.DUPLICATE
