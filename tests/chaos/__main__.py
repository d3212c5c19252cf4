"""``make chaos``: a bad day, and what it came to.

CHAOS_JSON=FILE writes that; CHAOS_SEED, CHAOS_STREAMS and CHAOS_S (of its worst part) change the day.
"""

import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path

import uvloop

from tests.chaos.course import Course, spend_day


def main() -> int:
    """Spend the day; 1 if a promise was broken."""
    faults_s = float(os.environ.get("CHAOS_S", "90"))
    course = Course(
        streams=int(os.environ.get("CHAOS_STREAMS", "500")),
        calm_s=faults_s / 2,
        hostile_s=faults_s / 2,
        faults_s=faults_s,
        seed=int(os.environ.get("CHAOS_SEED", "1")),
    )
    folder = Path(tempfile.mkdtemp(prefix="pdd-chaos-"))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        figures = runner.run(spend_day(course, folder))
    for name, value in figures.items():
        print(f"{name:36} {value}")
    if path := os.environ.get("CHAOS_JSON"):
        Path(path).write_text(json.dumps(figures, indent=1) + "\n")
    broken = ("lost_tokens", "doubled_tokens", "leaked_slots", "leaked_sockets", "leaked_tasks", "leaked_transfers")
    return int(any(figures[name] for name in broken))


if __name__ == "__main__":
    sys.exit(main())
