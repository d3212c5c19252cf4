"""Traces from files: Mooncake's, TraceLab's and our own (JSON lines), Azure's (CSV, which gets the agents' hits)."""

import csv
import json
import random
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from gateway.config.fleet_settings import BadSettings
from policies.simulator.cases import Agents, Recorded
from policies.simulator.trace import (
    MOONCAKE_BLOCK_TOKENS,
    TRACELAB_BLOCK_TOKENS,
    Row,
    read_azure,
    read_mooncake,
    read_tracelab,
)


def read_traffic(path: Path, agents: Agents, seed: int, most: int | None = None) -> Recorded:
    """Read a trace, its first ``most`` rows where that is given. Raises BadSettings."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            if path.suffix == ".csv":
                bare = list(read_azure(csv.DictReader(file)))
                rate = len(bare) / max(1.0, bare[-1].at_s) if bare else 1.0
                rows = list(agents.source(random.Random(seed), rate).dress(bare))
                block_tokens = agents.block_tokens
            else:
                rows, block_tokens = _read_lines(path, file)
    except OSError as error:
        raise BadSettings(f"cannot read {path}: {error.strerror}") from None
    except (KeyError, ValueError, TypeError) as error:
        raise BadSettings(f"{path}: not a trace ({type(error).__name__}: {error})") from None
    if not rows:
        raise BadSettings(f"{path}: no requests")
    return Recorded(tuple(_in_order(rows)[:most]), block_tokens)


def _in_order(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: row.at_s)


def _read_lines(path: Path, file: Iterator[str]) -> tuple[list[Row], int]:
    lines = _parse(path, file)
    first = next(lines, None)
    if first is None:
        return [], MOONCAKE_BLOCK_TOKENS
    if "prefix_tokens" in first:
        return list(read_tracelab(chain([first], lines))), TRACELAB_BLOCK_TOKENS
    return list(read_mooncake(chain([first], lines))), MOONCAKE_BLOCK_TOKENS


def _parse(path: Path, lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(lines, 1):
        if line.strip():
            value = json.loads(line)
            if not isinstance(value, dict) or not value.keys() & {"hash_ids", "prefix_tokens"}:
                raise BadSettings(f"{path}:{number}: not a request of a trace of Mooncake's or TraceLab's")
            yield value
