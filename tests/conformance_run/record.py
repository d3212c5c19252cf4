"""``python -m tests.conformance_run.record``: record vLLM's prompts of every shape, by our own templates."""

import json
import tempfile
from pathlib import Path

from gateway.text.shapes import SHAPES
from tests.conformance_run.own_templates import OWN_TEMPLATES
from tests.conformance_run.templates import ask_vllm, write_model

RECORDING = Path(__file__).with_name("vllm_prompts.json")


def main() -> None:
    """Ask, write."""
    with tempfile.TemporaryDirectory() as folder:
        prompts = ask_vllm(write_model(Path(folder) / "model"), OWN_TEMPLATES, SHAPES, Path(folder))
    texts = {name: {shape: found["text"] for shape, found in shapes.items()} for name, shapes in prompts.items()}
    RECORDING.write_text(json.dumps(texts, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
