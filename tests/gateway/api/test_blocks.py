"""Blocks of an answer: in order, complete, and the same whatever pieces it comes in."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.api.blocks import BlockRow
from gateway.text.parsers.output import CallDelta, Parts

PART = st.one_of(
    st.builds(lambda text: Parts("", reasoning=text), st.text("ab", min_size=1, max_size=3)),
    st.builds(Parts, st.text("cd", min_size=1, max_size=3)),
    st.just(Parts("", calls=(CallDelta(0, '{"a": 1}', "call", "f"),))),
)


@given(st.lists(PART, max_size=12))
def test_each_block_is_complete_before_the_next_begins(parts: list[Parts]) -> None:
    """Begin, growth, end, in the order of the parts; the growth of a block is its text, and nothing is lost."""
    row = BlockRow()
    events = [event for part in parts for event in row.add(part)] + list(row.close())
    open_block, grown = None, ""
    for event in events:
        if event.what == "begin":
            assert open_block is None
            open_block, grown = event.block, ""
        elif event.what == "grow":
            assert event.block is open_block
            grown += event.text
        else:
            assert event.block is open_block and grown == event.block.text
            open_block = None
    assert open_block is None
    assert [block.index for block in row.blocks] == list(range(len(row.blocks)))
    said = "".join(part.reasoning + part.content + "".join(call.arguments for call in part.calls) for part in parts)
    assert "".join(block.text for block in row.blocks) == said
    assert all(a.kind != b.kind or a.kind == "call" for a, b in zip(row.blocks, row.blocks[1:], strict=False))
