"""Tiny models, made once a session."""

import os
import warnings
from pathlib import Path

import pytest

# Read when the libraries are imported. Tests run in two processes; models this small gain nothing from more threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("LMCACHE_LOG_LEVEL", "CRITICAL")
os.environ.setdefault("LMCACHE_TRACK_USAGE", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# LMCache warns of one of its own dependencies when it is imported.
with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "`LoggingHandler` in", DeprecationWarning)
    import lmcache.v1.cache_engine
    import lmcache.v1.storage_backend.connector.redis_connector  # noqa: F401

from tests.backends.engines.reference.tiny import make_model


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama directory."""
    return make_model(tmp_path_factory.mktemp("models") / "tiny-llama", "llama")


@pytest.fixture(scope="session")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Qwen3 directory."""
    return make_model(tmp_path_factory.mktemp("models") / "tiny-qwen3", "qwen3")
