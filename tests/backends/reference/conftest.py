"""Tiny models, made once a session."""

import os
from pathlib import Path

import pytest

# Read when the libraries are imported.
os.environ.setdefault("LMCACHE_LOG_LEVEL", "CRITICAL")
os.environ.setdefault("LMCACHE_TRACK_USAGE", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from tests.backends.reference.tiny import make_model


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama directory."""
    return make_model(tmp_path_factory.mktemp("models") / "tiny-llama", "llama")


@pytest.fixture(scope="session")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Qwen3 directory."""
    return make_model(tmp_path_factory.mktemp("models") / "tiny-qwen3", "qwen3")
