"""The figures of one run, as ``E2E_JSON`` gets them."""

import os
from pathlib import Path
from typing import Any

import msgspec


class Figures:
    """Written out whenever something is added, so that a run that fails leaves what it had."""

    def __init__(self) -> None:
        self._figures: dict[str, Any] = {"engine": "vllm 0.32.0 + lmcache 0.5.6"}

    def add(self, **figures: Any) -> None:
        """Add figures by name."""
        self._figures |= figures
        if "E2E_JSON" in os.environ:
            Path(os.environ["E2E_JSON"]).write_bytes(msgspec.json.format(msgspec.json.encode(self._figures)))

    def add_family(self, name: str, **figures: Any) -> None:
        """Add what one family of models showed."""
        self.add(families=self._figures.get("families", {}) | {name: figures})
