"""Single values out of Prometheus text, read by hand: an engine's ``/metrics`` is large and few values are wanted."""

import math
import re

_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def read_samples(text: str, name: str) -> list[float]:
    """Values of all series called ``name``, in order; those that are not finite numbers are left out."""
    values = []
    for _, rest in _series(text, name):
        try:
            value = float(rest.split()[0])
        except (ValueError, IndexError):
            continue
        if math.isfinite(value):
            values.append(value)
    return values


def find_label(text: str, name: str, label: str) -> str | None:
    """Value of ``label`` in the first series called ``name`` that has it."""
    for labels, _ in _series(text, name):
        for key, value in _LABEL.findall(labels):
            if key == label:
                return str(value)
    return None


def _series(text: str, name: str) -> list[tuple[str, str]]:
    """Labels and the rest of the line (value, perhaps a timestamp) of each series called ``name``."""
    pattern = rf"^{re.escape(name)}(\{{.*\}})?[ \t]+(.*)$"
    return [(match[1] or "", match[2]) for match in re.finditer(pattern, text, re.MULTILINE)]
