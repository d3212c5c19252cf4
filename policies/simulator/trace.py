"""Requests to replay: rows of recorded traces, and what is done to their times."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import count, islice
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


TRACELAB_BLOCK_TOKENS = 256
_INPUTS = frozenset({"user_message", "tool_result"})


def read_tracelab(rows: Iterable[Mapping[str, Any]]) -> Iterator[Row]:
    """Read parsed rounds of coding agents as TraceLab publishes them (``round_trace.jsonl``); the first is at 0 s.

    ``prefix_tokens`` of a prompt were in the provider's cache: the leading part of the session's prompt before. What a
    session's first round found there, its tools and system prompt, is the same for all sessions of a model. A round
    comes when the last of what it answers is there. Raises KeyError or ValueError for rows that are something else.
    """
    fresh = count()
    shared: dict[str, list[int]] = {}
    sessions: dict[str, tuple[int, ...]] = {}
    start_s: float | None = None
    for row in rows:
        session, prompt = str(row["session_id"]), max(1, int(row["input_tokens_total"]))
        kept = int(row["prefix_tokens"]) // TRACELAB_BLOCK_TOKENS
        before: Sequence[int] = sessions.get(session, ())
        if session not in sessions:
            before = shared.setdefault(str(row["model"]), [])
            before.extend(islice(fresh, max(0, kept - len(before))))
        known = tuple(before[:kept])
        blocks = known + tuple(islice(fresh, -(-prompt // TRACELAB_BLOCK_TOKENS) - len(known)))
        sessions[session] = blocks
        at_s = _came_s(row["timing_events"])
        start_s = at_s if start_s is None else start_s
        yield Row(at_s - start_s, prompt, max(1, int(row["output_tokens"])), blocks, session)


def _came_s(events: Sequence[Mapping[str, str]]) -> float:
    """When the last message or tool's result was there; where none is told, when the answer began."""
    moments = [datetime.fromisoformat(one["timestamp"]) for one in events if one["event_type"] in _INPUTS]
    return max(moments or [datetime.fromisoformat(events[0]["timestamp"])]).timestamp()


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
