"""``python -m tests.conformance_run [NAME ...]``: how this gateway reads and writes beside others, as figures.

Each part is a module of this package that has ``run() -> Mapping[str, object]``; keys begin with its name. With
CONFORMANCE_JSON=FILE in the environment the figures go there as one JSON object. A part that cannot run says why.
"""

import argparse
import importlib
import os
from pathlib import Path
from typing import Any

import msgspec

from tests.conformance_run.parts import NotRun

PARTS = ("templates", "toolcalls", "clients")
"""The parts, each a module of this package."""


def main() -> None:
    """Run, print, write."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance_run", description="Run parts; default: all.")
    parser.add_argument("names", nargs="*", choices=[*PARTS, []], metavar="NAME", help=", ".join(PARTS))
    figures: dict[str, Any] = {}
    for name in parser.parse_args().names or PARTS:
        print(f"-- {name}", flush=True)
        try:
            part: Any = importlib.import_module(f"tests.conformance_run.{name}")
            figures |= part.run()
        except (NotRun, ModuleNotFoundError) as reason:
            print(f"NOT RUN: {reason}", flush=True)
            figures[f"{name}.not_run"] = str(reason)
    for figure, value in figures.items():
        print(f"{figure:44} {value}")
    target = os.environ.get("CONFORMANCE_JSON")
    if target:
        Path(target).write_bytes(msgspec.json.format(msgspec.json.encode(figures)) + b"\n")


if __name__ == "__main__":
    main()
