"""The steps that must be one step in Redis: a Lua file each in ``lua``, named after whose state it changes."""

from collections.abc import Mapping
from pathlib import Path

_HERE = Path(__file__).parent
_PRELUDE = (_HERE / "prelude.lua").read_text(encoding="utf-8")

SCRIPTS: Mapping[str, str] = {
    path.stem: _PRELUDE + path.read_text(encoding="utf-8") for path in sorted((_HERE / "lua").glob("*.lua"))
}
"""Source by name. Read at import, as nothing may read files once the event loop runs."""
