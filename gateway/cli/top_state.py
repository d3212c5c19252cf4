"""What ``pdd top`` knows: the gateway's sections as its event stream tells them, and what the keys have chosen."""

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from gateway.operator.view import POINTS

SORTS: dict[str, str] = {"newest": "at_s", "TTFT": "ttft_s", "gap": "gap_s", "WAN": "wan_bytes"}
"""Orders of requests, and the field that each goes by, largest first."""
SEARCHED = ("model", "tenant", "plan", "outcome", "phase")
ENTER, ESCAPE, INTERRUPT = ("\r", "\n"), "\x1b", "\x03"
BACKSPACES = ("\x7f", "\b")


@dataclass(slots=True)
class WatchedState:
    """The sections, by name and id, and the points of the last minute. ``lost``: why they are no more of now."""

    sections: dict[str, dict[str, Any]] = field(default_factory=dict)
    points: deque[dict[str, float]] = field(default_factory=lambda: deque(maxlen=POINTS))
    lost: str | None = None

    def take(self, told: dict[str, Any], whole: bool) -> None:
        """Take an event. ``whole``: all sections, else what changed in them."""
        if whole:
            self.sections = {}
            self.points.clear()
        for name, changes in told["sections"].items():
            section = self.sections.setdefault(name, {})
            for id_, value in changes.items():
                if value is None:
                    section.pop(id_, None)
                else:
                    section[id_] = value
        self.points.extend(told["points"])
        self.lost = None

    def section(self, name: str) -> dict[str, Any]:
        """Return a section's things by id."""
        return self.sections.get(name, {})


@dataclass(slots=True)
class Controls:
    """What the keys have chosen."""

    sort: str = "newest"
    filter: str = ""
    typing: bool = False
    """The filter is being written."""
    over: bool = False

    def press(self, key: str) -> None:
        """Take a key."""
        if key == INTERRUPT or (key == "q" and not self.typing):
            self.over = True
        elif self.typing:
            self._write(key)
        elif key == "s":
            names = list(SORTS)
            self.sort = names[(names.index(self.sort) + 1) % len(names)]
        elif key == "/":
            self.typing = True
        elif key == ESCAPE:
            self.filter = ""

    def _write(self, key: str) -> None:
        if key in ENTER or key == ESCAPE:
            self.typing = False
            self.filter = "" if key == ESCAPE else self.filter
        elif key in BACKSPACES:
            self.filter = self.filter[:-1]
        elif key.isprintable():
            self.filter += key

    def choose(self, requests: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
        """Return the requests that the filter lets through, running ones first, in the chosen order."""
        sought = self.filter.lower()
        found = [
            (id_, one)
            for id_, one in requests.items()
            if sought in " ".join([id_, *(str(one[name] or "") for name in SEARCHED)]).lower()
        ]
        return sorted(found, key=lambda pair: (pair[1]["running"], pair[1][SORTS[self.sort]] or 0), reverse=True)
