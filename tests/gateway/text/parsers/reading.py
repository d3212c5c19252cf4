"""Reads texts as a client of the API gets them."""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from gateway.text.parsers.output import ALL_PARTS, PartsWanted
from gateway.text.parsers.reader import MessageReader
from gateway.text.parsers.registry import find_parsers

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "get",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer"},
                    "raw": {"type": ["object", "null"]},
                },
            },
        },
    },
    {"type": "function", "function": {"name": "put"}},
]


class Read(NamedTuple):
    """What an answer says."""

    content: str
    reasoning: str = ""
    calls: tuple[tuple[str, str], ...] = ()


def new_reader(
    tools: str | None,
    reasoning: str | None = None,
    *,
    opening: str = "",
    controls: Collection[str] = (),
    wanted: PartsWanted = ALL_PARTS,
) -> MessageReader:
    """Return a reader of the parsers of these names; ``controls``: the model's control tokens."""
    reader = find_parsers(tools, reasoning, controls).make_reader(opening, TOOLS if tools else None, wanted)
    assert reader is not None
    return reader


def read(reader: MessageReader, pieces: Sequence[str]) -> Read:
    """Return what comes of a text in pieces. A call's id and name come once, and no content is of blanks alone."""
    content, reasoning, calls = "", "", list[tuple[str, str]]()
    ids = set()
    for part in (*map(reader.push, pieces), reader.flush()):
        content += part.content
        reasoning += part.reasoning
        for call in part.calls:
            assert call.name is not None
            assert call.id is not None
            assert call.index == len(calls)
            ids.add(call.id)
            calls.append((call.name, call.arguments))
    assert len(ids) == len(calls)
    assert reader.called == bool(calls)
    return Read(content, reasoning, tuple(calls))
