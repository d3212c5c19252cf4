"""The demo model: its text, its prompts, the script that makes it, and the files that the script made."""

from pathlib import Path

MODEL_DIR = Path(__file__).parent / "model"
"""The Hugging Face directory of the demo model."""
