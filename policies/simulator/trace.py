"""Requests to replay: rows of recorded traces, and made-up agent traffic."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from policies.types import Rng


@dataclass(frozen=True, slots=True)
class Row:
    """One request. Equal block ids in two rows mean an equal prefix up to and with that block."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]
    """Ids of the prompt's blocks in order; the last may stand for a part of a block."""


def read_mooncake(rows: Iterable[Mapping[str, Any]]) -> Iterator[Row]:
    """Read parsed rows of a Mooncake trace: ``timestamp`` (ms), ``input_length``, ``output_length``, ``hash_ids``.

    Blocks are of 512 tokens. Raises KeyError or ValueError for rows that are something else.
    """
    for row in rows:
        yield Row(
            at_s=int(row["timestamp"]) / 1000,
            prompt_tokens=int(row["input_length"]),
            output_tokens=max(1, int(row["output_length"])),
            blocks=tuple(map(int, row["hash_ids"])),
        )


@dataclass(frozen=True, slots=True)
class AgentTraffic:
    """Agents that send their growing context again each turn: most turns hit high, first turns and resets low."""

    sessions_per_s: float
    duration_s: float
    first_tokens: int = 40_000
    """Mean length of a first prompt."""
    turn_tokens: int = 1_500
    """Mean number of new tokens of a turn."""
    output_tokens: int = 1_000
    """Mean length of an answer."""
    turns: int = 12
    pause_s: float = 20.0
    shared_tokens: int = 4_096
    """Prefix that all sessions share."""
    block_tokens: int = 256

    def rows(self, rng: Rng) -> list[Row]:
        """Make the rows, in order of time."""
        made: list[Row] = []
        at_s, fresh = 0.0, 1_000_000
        while True:
            at_s += _spread(rng, 1 / self.sessions_per_s)
            if at_s >= self.duration_s:
                return sorted(made, key=lambda row: row.at_s)
            blocks = list(range(self.shared_tokens // self.block_tokens))
            tokens = self.shared_tokens + int(_spread(rng, max(1, self.first_tokens - self.shared_tokens)))
            turn_s = at_s
            for _ in range(1 + int(_spread(rng, self.turns - 1))):
                missing = -(-tokens // self.block_tokens) - len(blocks)
                blocks.extend(range(fresh, fresh + missing))
                fresh += missing + 1
                answer = 1 + int(_spread(rng, self.output_tokens))
                made.append(Row(turn_s, tokens, answer, tuple(blocks)))
                blocks = blocks[: tokens // self.block_tokens]
                tokens += answer + 1 + int(_spread(rng, self.turn_tokens))
                turn_s += _spread(rng, self.pause_s) + 1.0


def _spread(rng: Rng, mean: float) -> float:
    """A number between 0 and twice the mean, most often near it."""
    return mean * (rng.random() + rng.random())
