"""Durations as people write them: ``90s``, ``30m``, ``12h``, ``7d``."""

import argparse
import re

UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION = re.compile(r"([1-9][0-9]{0,8})([smhd])")


def read_duration_s(text: str) -> int:
    """Return the seconds of a duration, as an argument's type. Raises ArgumentTypeError."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration like 90s, 30m, 12h or 7d")
    return int(match[1]) * UNITS_S[match[2]]
