"""What a conversation of 20 tool calls with thoughts costs MD's side, with and without the exact ids of its turns.

Nothing here is timed: the figures count tokens and bytes, so that they are the same on any machine.
"""

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from gateway.text.model import ServedModel
from tests.gateway.api.talk import make_model, talk

TURNS = 20
ODD = {"none": 0, "every_fourth": 4, "all": 1}
"""How many answers are in tokens or a spelling that tokeniser and template would not make of them."""


def run() -> dict[str, Any]:
    """Hold each conversation twice."""
    with tempfile.TemporaryDirectory() as folder:
        model = make_model(Path(folder) / "model")
        try:
            return {f"turns.{name}": asyncio.run(_compare(model, odd)) for name, odd in ODD.items()}
        finally:
            model.close()


async def _compare(model: ServedModel, odd: int) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for reuse in (True, False):
        talked = await talk(model, TURNS, reuse=reuse, odd=odd)
        same = sum(prompt == rendered for prompt, rendered in zip(talked.prompts, talked.rendered, strict=True))
        figures["with" if reuse else "without"] = {
            "prompt_tokens": talked.prompt_tokens,
            "md_hit_tokens": talked.md_hit_tokens,
            "wan_bytes": talked.wan_bytes,
            "prompts_as_engines_render": same,
        }
    return figures
