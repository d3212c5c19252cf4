"""An answer as a row of blocks, reasoning, text and tool calls, each complete before the next begins. No I/O.

Two APIs tell answers so, each in words of its own: Anthropic's messages and OpenAI's responses.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from gateway.api.choices import Addition, Ending, Gathered
from gateway.text.parsers.output import CallDelta, Parts

BlockKind = Literal["reasoning", "text", "call"]


@dataclass(slots=True)
class AnswerBlock:
    """One block. ``call_id`` and ``name`` are a call's; its text is the arguments' JSON."""

    index: int
    kind: BlockKind
    call_id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All of it so far."""
        return "".join(self.pieces)


@dataclass(frozen=True, slots=True)
class BlockEvent:
    """News of a block: it begins, grows by ``text``, or is complete."""

    what: Literal["begin", "grow", "end"]
    block: AnswerBlock
    text: str = ""


class BlockRow:
    """Puts what is added to an answer into blocks."""

    def __init__(self) -> None:
        self.blocks: list[AnswerBlock] = []
        self._is_open = False

    def add(self, parts: Addition | Parts) -> Iterator[BlockEvent]:
        """Yield what some tokens change."""
        if parts.reasoning:
            yield from self._grow("reasoning", parts.reasoning)
        if parts.content:
            yield from self._grow("text", parts.content)
        for call in parts.calls:
            yield from self._call(call)

    def close(self) -> Iterator[BlockEvent]:
        """Yield the end of the block that is open, if one is."""
        if self._is_open:
            self._is_open = False
            yield BlockEvent("end", self.blocks[-1])

    def _grow(self, kind: BlockKind, text: str) -> Iterator[BlockEvent]:
        if not self._is_open or self.blocks[-1].kind != kind:
            yield from self._begin(AnswerBlock(len(self.blocks), kind))
        self.blocks[-1].pieces.append(text)
        yield BlockEvent("grow", self.blocks[-1], text)

    def _call(self, call: CallDelta) -> Iterator[BlockEvent]:
        if call.id is not None and call.name is not None:
            yield from self._begin(AnswerBlock(len(self.blocks), "call", call.id, call.name))
        if call.arguments:
            self.blocks[-1].pieces.append(call.arguments)
            yield BlockEvent("grow", self.blocks[-1], call.arguments)

    def _begin(self, block: AnswerBlock) -> Iterator[BlockEvent]:
        yield from self.close()
        self.blocks.append(block)
        self._is_open = True
        yield BlockEvent("begin", block)


def list_blocks(gathered: Gathered, ending: Ending) -> Sequence[AnswerBlock]:
    """Return the blocks of a whole answer."""
    row = BlockRow()
    parts: tuple[Addition | Parts, ...] = (*gathered.parts, ending.parts)
    for part in parts:
        for _ in row.add(part):
            pass
    return row.blocks
