"""Prints the keys that LMCache gives the chunks of 1,024 tokens where it finds a vLLM: run as a module.

The vLLM is a stand-in with the one function that LMCache calls for its chains, written as vLLM 0.32 has it. Its hash
functions have no ``builtin``, which is LMCache's default, so LMCache takes Python's own.
"""

import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.metadata import LMCacheMetadata
from lmcache.v1.token_database import ChunkedTokenDatabase


class CacheUtils(ModuleType):
    """Stands for ``vllm.v1.core.kv_cache_utils``."""

    NONE_HASH: Any

    def init_none_hash(self, hash_fn: Callable[[str], Any]) -> None:
        """Start chains at the hash of the seed, as it is spelled; vLLM takes 32 random bytes where there is none."""
        self.NONE_HASH = hash_fn(os.environ["PYTHONHASHSEED"])


def main() -> None:
    """Print the keys, one a line."""
    utils, core = CacheUtils("vllm.v1.core.kv_cache_utils"), ModuleType("vllm.v1.core")
    vars(core)["kv_cache_utils"] = utils
    sys.modules |= {"vllm": ModuleType("vllm"), "vllm.v1": ModuleType("vllm.v1"), "vllm.v1.core": core}
    sys.modules["vllm.v1.core.kv_cache_utils"] = utils
    metadata = LMCacheMetadata("demo", 1, 1, 0, 0, torch.float32, (4, 2, 256, 2, 64))
    database = ChunkedTokenDatabase(LMCacheEngineConfig.from_defaults(chunk_size=256), metadata)
    for _, _, key in database.process_tokens(list(range(1024))):
        sys.stdout.write(f"{key.to_string()}\n")


if __name__ == "__main__":
    main()
