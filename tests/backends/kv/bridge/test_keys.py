"""Tests of the chunk keys, against keys that LMCache 0.5.6 made."""

import os
import subprocess
import sys

import pytest

from backends.kv.bridge.keys import DIALECTS, KeyDialect, KeyRequest, KeysRefused

IN_PROCESS = DIALECTS["lmcache"]
SERVER = DIALECTS["lmcache-mp"]
VECTORS_SERVER = [
    "demo@01000100@0@a2981a4d792b45f791d784bfd025148836ce3032f546cc490ef9fb7db9e639de",
    "demo@01000100@0@f76a7280af54e664fff4e1239c4a72936fedc49ba027e3a969a314ae980dbfd5",
]


def test_in_process_keys() -> None:
    """Keys without a salt are LMCache's; a negative hash is written with its sign, without padding."""
    assert IN_PROCESS.chunk_keys(KeyRequest("demo", range(8), 4)) == [
        "demo@1@0@1abacd733b54a8ac@float",
        "demo@1@0@-6c4f18f9b2e02e86@float",
    ]


def test_in_process_keys_of_longer_chunks() -> None:
    """The chain holds over several chunks of 64."""
    keys = IN_PROCESS.chunk_keys(KeyRequest("m", range(100, 356), 64))
    assert [key.split("@")[3] for key in keys] == [
        "-18a52832ce4d4083",
        "44496a2b02bc8338",
        "-20b194ca43c50773",
        "1f4725a6f54266b1",
    ]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", [0, 42])
def test_in_process_keys_inside_vllm(seed: int) -> None:
    """LMCache's own hashes in a process with that PYTHONHASHSEED, beside a vLLM whose chains start as 0.32's do."""
    environment = os.environ | {"PYTHONHASHSEED": str(seed)}
    program = [sys.executable, "-W", "ignore", "-m", "tests.backends.kv.bridge.inside_vllm"]
    printed = subprocess.run(program, env=environment, capture_output=True, check=True, text=True).stdout
    keys = IN_PROCESS.chunk_keys(KeyRequest("demo", range(1024), 256, hash_seed=seed))
    assert keys == printed.splitlines()[-4:]
    assert keys != IN_PROCESS.chunk_keys(KeyRequest("demo", range(1024), 256))


def test_in_process_salt_and_dtype() -> None:
    """A salt is a tag behind the dtype, hashed so that any text is allowed; it does not change the chain."""
    request = KeyRequest("org/m", range(8), 4, salt="tenant-a", dtype="bfloat16")
    assert IN_PROCESS.chunk_keys(request)[0] == (
        "org/m@1@0@1abacd733b54a8ac@bfloat16@salt%80a707af7dc77ee1228f9127180f3964"
    )


def test_an_empty_salt_is_none() -> None:
    """An empty salt and no salt make the same keys."""
    for dialect in DIALECTS.values():
        assert dialect.chunk_keys(KeyRequest("m", range(8), 4, salt="")) == dialect.chunk_keys(
            KeyRequest("m", range(8), 4)
        )


def test_server_keys() -> None:
    """Keys of the LMCache server: BLAKE3 digests, with world, rank and node packed into the second field."""
    keys = SERVER.chunk_keys(KeyRequest("demo", range(8), 4))
    assert keys == VECTORS_SERVER


def test_server_salt_and_ranks() -> None:
    """A salt comes last as it is; each rank of a tensor-parallel engine has its own key, chunk by chunk."""
    keys = SERVER.chunk_keys(KeyRequest("demo", range(8), 4, salt="tenant-a", world_size=2))
    digests = [key.split("@")[3] for key in VECTORS_SERVER]
    assert keys == [f"demo@{rank}@0@{digest}@tenant-a" for digest in digests for rank in ("02000200", "02010201")]


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
def test_only_full_chunks_have_keys(dialect: KeyDialect) -> None:
    """Tokens behind the last full chunk make no key; a prompt shorter than a chunk makes none at all."""
    counts = [len(dialect.chunk_keys(KeyRequest("m", range(length), 4))) for length in (0, 3, 4, 7, 8)]
    assert counts == [0, 0, 1, 1, 2]


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (KeyRequest("m", [1], 0), "chunk_tokens"),
        (KeyRequest("", [1], 1), "model"),
        (KeyRequest("a@b", [1], 1), "model"),
        (KeyRequest("m", [-1], 1), "token_ids"),
        (KeyRequest("m", [1 << 32], 1), "token_ids"),
        (KeyRequest("m", [1], 1, world_size=0), "world_size"),
    ],
)
def test_refuses_what_has_no_key(request_: KeyRequest, field: str) -> None:
    """What cannot be spelled is refused by naming the field."""
    for dialect in DIALECTS.values():
        with pytest.raises(KeysRefused, match=field):
            dialect.chunk_keys(request_)


def test_refuses_a_salt_that_would_break_the_key() -> None:
    """The server's dialect has characters that a salt must not hold; the in-process one has none, but has dtypes."""
    with pytest.raises(KeysRefused, match="salt"):
        SERVER.chunk_keys(KeyRequest("m", [1], 1, salt="a@b"))
    with pytest.raises(KeysRefused, match="dtype"):
        IN_PROCESS.chunk_keys(KeyRequest("m", [1], 1, dtype="int3"))


def test_store_keys() -> None:
    """An in-process chunk is two strings, of which the metadata is the guard; a server's chunk is one."""
    assert (IN_PROCESS.value_key("k"), IN_PROCESS.guard_key("k")) == (b"kkv_bytes", b"kmetadata")
    assert (SERVER.value_key("k"), SERVER.guard_key("k")) == (b"k", None)
