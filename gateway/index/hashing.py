"""Names for prefixes of token ids: one chained xxh3-128 hash per block of 16 tokens.

The name of block ``i`` covers every token before its end, so equal names mean equal prefixes. A chain starts from a
seed that binds model, LoRA adapter and tenant salt: the same tokens under another of them have unrelated names. Names
do not depend on an engine's hash seed or block size; with a deployment's key, they tell an outsider nothing of the ids.
"""

from array import array
from collections.abc import Sequence
from hashlib import blake2b
from struct import Struct

from xxhash import xxh3_128_digest

BLOCK_TOKENS = 16
DIGEST_BYTES = 16
_BLOCK = Struct(f"{BLOCK_TOKENS * 4}s")


def chain_seed(model: str, lora: str | None, salt: str | None, key: bytes = b"") -> bytes:
    """Return the 16 bytes that a chain starts from.

    Fields are framed by their length, so no two different triples share a seed; None differs from "". ``key`` is a
    secret of the deployment, at most 64 bytes.
    """
    state = blake2b(digest_size=DIGEST_BYTES, key=key)
    for text in (model, lora, salt):
        raw = b"" if text is None else b"\x01" + text.encode("utf-8", "surrogatepass")
        state.update(len(raw).to_bytes(8, "little"))
        state.update(raw)
    return state.digest()


def chain_digests(token_ids: Sequence[int], parent: bytes) -> list[bytes]:
    """Return the 16-byte digests of the full blocks in ``token_ids``, the first one following ``parent``.

    An ``array("I")`` is read in place, any other sequence is copied once. Raises ValueError for ids outside 0..2^32-1.
    """
    full = len(token_ids) - len(token_ids) % BLOCK_TOKENS
    if isinstance(token_ids, array) and token_ids.typecode == "I":
        ids = token_ids
    else:
        try:
            ids = array("I", token_ids)
        except (OverflowError, TypeError) as error:
            raise ValueError("token ids must be integers in 0..2^32-1") from error
    digest = parent
    raw = memoryview(ids)[:full]
    return [digest := xxh3_128_digest(digest + block) for (block,) in _BLOCK.iter_unpack(raw)]


def block_keys(digests: Sequence[bytes]) -> list[int]:
    """Return the 64-bit keys under which an index files blocks: the first half of each digest."""
    return memoryview(b"".join(digests)).cast("Q")[::2].tolist()


def hash_blocks(token_ids: Sequence[int], seed: bytes) -> list[int]:
    """Return one 64-bit key for each full block of ``token_ids``; a last partial block has no name."""
    return block_keys(chain_digests(token_ids, seed))
