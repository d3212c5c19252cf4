"""Traces from files: Mooncake's and our own (JSON lines), Azure's (CSV, which gets the agents' hits)."""

import csv
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gateway.config.fleet_settings import BadSettings
from policies.simulator.cases import Agents, Recorded
from policies.simulator.trace import MOONCAKE_BLOCK_TOKENS, Row, read_azure, read_mooncake


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
                lines = _parse(path, file)
                rows, block_tokens = list(read_mooncake(lines)), MOONCAKE_BLOCK_TOKENS
    except OSError as error:
        raise BadSettings(f"cannot read {path}: {error.strerror}") from None
    except (KeyError, ValueError, TypeError) as error:
        raise BadSettings(f"{path}: not a trace ({type(error).__name__}: {error})") from None
    if not rows:
        raise BadSettings(f"{path}: no requests")
    return Recorded(tuple(_in_order(rows)[:most]), block_tokens)


def _in_order(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: row.at_s)


def _parse(path: Path, lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(lines, 1):
        if line.strip():
            value = json.loads(line)
            if not isinstance(value, dict) or "hash_ids" not in value:
                raise BadSettings(f"{path}:{number}: not a request of a Mooncake trace")
            yield value
