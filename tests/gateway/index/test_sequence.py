"""Order of messages."""

from gateway.index.engine_blocks import EventMark
from gateway.index.ingest import MessageOrder, Watermark


def test_messages_are_placed() -> None:
    """The next number is next; a later one is behind a gap; the same bytes are a duplicate, others a restart."""
    watermark = Watermark()
    assert watermark.mark() is None
    assert watermark.judge(0, b"a") is MessageOrder.NEXT
    assert watermark.judge(1, b"b") is MessageOrder.GAP
    watermark.take(0, b"a")
    assert watermark.judge(0, b"a") is MessageOrder.DUPLICATE
    assert watermark.judge(0, b"x") is MessageOrder.RESTART
    assert watermark.judge(1, b"b") is MessageOrder.NEXT


def test_another_process_goes_on_from_a_mark() -> None:
    """A mark carries the last message over; older ones are not remembered, so they look like a restart."""
    watermark = Watermark()
    for number in range(3):
        watermark.take(number, b"%d" % number)
    heir = Watermark(watermark.mark())
    assert heir.mark() == watermark.mark() == EventMark(2, watermark._seen[2])
    assert heir.judge(2, b"2") is MessageOrder.DUPLICATE
    assert heir.judge(3, b"3") is MessageOrder.NEXT
    assert heir.judge(1, b"1") is MessageOrder.RESTART


def test_memory_is_bounded() -> None:
    """Only so many messages are remembered."""
    watermark = Watermark()
    for number in range(20_000):
        watermark.take(number, b"")
    assert watermark.judge(0, b"") is MessageOrder.RESTART
    assert watermark.judge(19_999, b"") is MessageOrder.DUPLICATE
