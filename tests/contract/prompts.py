"""What the recorded engine was asked; plain numbers, so that nothing but the recordings is needed to judge them."""

from pathlib import Path

RECORDINGS = Path(__file__).parent / "recordings"
MODEL_PATH = "models/demo"
"""Stands for the directory that the recorded engine was started with."""
PROMPT = [200 + number % 1000 for number in range(600)]
SALTED = [300 + number % 1000 for number in range(300)]
SALT = "tenant-a"
CHUNK_TOKENS = 256
BLOCK_TOKENS = 32
KV_BYTES_PER_TOKEN = 4096
