"""Requests to replay: rows of recorded traces, and what is done to their times."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

MOONCAKE_BLOCK_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Row:
    """One request. Equal block ids in two rows mean an equal prefix up to and with that block."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]
    """Ids of the prompt's blocks in order; the last may stand for a part of a block."""
    session: str | None = None


def read_mooncake(rows: Iterable[Mapping[str, Any]]) -> Iterator[Row]:
    """Read parsed rows of a Mooncake trace: ``timestamp`` (ms), ``input_length``, ``output_length``, ``hash_ids``.

    Blocks are of 512 tokens. ``session`` is read where it is there, as in our own traces, whose block ids are strings.
    Raises KeyError or ValueError for rows that are something else.
    """
    ids: dict[str | int, int] = {}
    for row in rows:
        session = row.get("session")
        yield Row(
            at_s=int(row["timestamp"]) / 1000,
            prompt_tokens=int(row["input_length"]),
            output_tokens=max(1, int(row["output_length"])),
            blocks=tuple([ids.setdefault(block, len(ids)) for block in row["hash_ids"]]),
            session=None if session is None else str(session),
        )


@dataclass(frozen=True, slots=True)
class BareRequest:
    """A request of which nothing but its time and lengths is known."""

    at_s: float
    prompt_tokens: int
    output_tokens: int


def read_azure(rows: Iterable[Mapping[str, str]]) -> Iterator[BareRequest]:
    """Read rows of an Azure LLM trace (``TIMESTAMP``, ``ContextTokens``, ``GeneratedTokens``); the first is at 0 s.

    Raises KeyError or ValueError for rows that are something else.
    """
    start: datetime | None = None
    for row in rows:
        moment = datetime.fromisoformat(row["TIMESTAMP"][:26])
        start = start or moment
        yield BareRequest(
            (moment - start).total_seconds(), max(1, int(row["ContextTokens"])), max(1, int(row["GeneratedTokens"]))
        )


def pace(rows: Sequence[Row], rate_per_s: float) -> list[Row]:
    """Stretch or squeeze the times of rows (in order), so that ``rate_per_s`` requests come in a second on average."""
    if not rows:
        return []
    first_s = rows[0].at_s
    span_s = max(1e-9, rows[-1].at_s - first_s)
    factor = len(rows) / rate_per_s / span_s
    return [replace(row, at_s=(row.at_s - first_s) * factor) for row in rows]


def mean_rate(rows: Sequence[Row]) -> float:
    """Requests in a second, over the whole of ``rows`` (in order)."""
    return len(rows) / max(1e-9, rows[-1].at_s - rows[0].at_s) if len(rows) > 1 else 1.0
