"""Hashes of texts under a hash seed, against Python itself."""

import os
import subprocess
import sys

import pytest

from backends.kv.bridge.python_hash import hash_text

TEXTS = ["0", "1", "42", "4294967295", "seven b", "eight by", "nine byte", "sixteen bytes 16", "a" * 300]


@pytest.mark.parametrize("seed", [0, 1, 42, 4294967295])
def test_hashes_are_python_s_own(seed: int) -> None:
    """A process with that PYTHONHASHSEED has the same hashes, of short texts and of long ones."""
    program = f"print(*map(hash, {TEXTS!r}))"
    environment = os.environ | {"PYTHONHASHSEED": str(seed)}
    printed = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=True).stdout
    assert [hash_text(text, seed) for text in TEXTS] == [int(word) for word in printed.split()]
