"""Keys that a real LMCache 0.5.6 server wrote (see ``record``) are those that the bridge computes."""

import msgspec

from backends.kv.bridge.keys import DIALECTS, KeyRequest
from tests.contract.prompts import CHUNK_TOKENS, KV_BYTES_PER_TOKEN, MODEL_PATH, PROMPT, RECORDINGS, SALT, SALTED

STORED = msgspec.json.decode((RECORDINGS / "lmcache_keys.json").read_bytes(), type=dict[str, int])


def test_chunk_keys() -> None:
    """Every full chunk of both prompts is stored under its computed key, and nothing else is."""
    spell = DIALECTS["lmcache-mp"].chunk_keys
    keys = spell(KeyRequest(MODEL_PATH, PROMPT, CHUNK_TOKENS))
    keys += spell(KeyRequest(MODEL_PATH, SALTED, CHUNK_TOKENS, salt=SALT))
    assert set(STORED) == set(keys)


def test_chunk_sizes() -> None:
    """A chunk holds the KV of its tokens and nothing more."""
    assert set(STORED.values()) == {CHUNK_TOKENS * KV_BYTES_PER_TOKEN}
