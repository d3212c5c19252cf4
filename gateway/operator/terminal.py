"""What commands show in a terminal: the colours of roles, figures as people read them, text that steers nothing."""

import re

ROLE_STYLES = {"P": "bold #b04ae8", "RLD": "#d97706", "MD": "#14b8a6"}
"""The page's violet, amber and teal, readable on dark and on light, as rich has styles; other roles have none."""
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def plain(text: str) -> str:
    """Return text without what would steer the terminal; models and engines are not trusted with that."""
    return CONTROLS.sub("\ufffd", text)


def spell_bytes(count: float) -> str:
    """Write a number of bytes in powers of ten."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} B"


def spell_seconds(seconds: float | None) -> str:
    """Write a time as people read it; a dash for none."""
    if seconds is None:
        return "-"
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.2f} s" if seconds < 100 else f"{seconds:.0f} s"
