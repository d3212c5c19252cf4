"""``python -m tests.bench [NAME ...]``: run all benchmarks, or those named, and print one table of their medians.

With BENCH_JSON=FILE in the environment the figures are written there as one JSON object as well.
"""

import argparse
import importlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

NAMES = sorted(path.stem.removeprefix("bench_") for path in Path(__file__).parent.glob("bench_*.py"))


def flatten(figures: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Go through figures and those of groups of them."""
    for name, value in figures.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def spell(value: float | str | None) -> str:
    """A figure as the table has it; None: it was not measured."""
    if value is None or isinstance(value, str):
        return value or "-"
    return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"


def main() -> None:
    """Run, print, write."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description="Run benchmarks; default: all.")
    parser.add_argument("names", nargs="*", choices=[*NAMES, []], metavar="NAME", help=", ".join(NAMES))
    figures: dict[str, Any] = {}
    for name in parser.parse_args().names or NAMES:
        print(f"-- {name}", flush=True)
        bench: Any = importlib.import_module(f"tests.bench.bench_{name}")
        figures |= bench.run()
    print(f"\n{'figure':44} {'median':>16}")
    for figure, value in flatten(figures):
        print(f"{figure:44} {spell(value):>16}")
    target = os.environ.get("BENCH_JSON")
    if target:
        Path(target).write_bytes(msgspec.json.format(msgspec.json.encode(figures)) + b"\n")


if __name__ == "__main__":
    main()
