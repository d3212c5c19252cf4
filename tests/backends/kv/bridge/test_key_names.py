"""Tests of reading keys back: what ``keys`` spells is read as what it was made of."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.kv.bridge.key_names import KeyName, Origin, first_digests, read_key, salt_markers
from backends.kv.bridge.keys import DIALECTS, DTYPE_NAMES, KeyRequest

MODELS = st.text(st.characters(codec="utf-8", exclude_characters="@", exclude_categories=["Cs", "Cc"]), min_size=1)
SALTS = st.none() | st.text("abcdef-0123456789_", min_size=1, max_size=40)


@given(
    dialect=st.sampled_from(sorted(DIALECTS)),
    model=MODELS,
    salt=SALTS,
    dtype=st.sampled_from(sorted(DTYPE_NAMES)),
    world_size=st.integers(1, 8),
    hash_seed=st.none() | st.integers(0, 100),
)
def test_what_is_spelled_is_read(
    dialect: str, model: str, salt: str | None, dtype: str, world_size: int, hash_seed: int | None
) -> None:
    """Model, ranks, dtype and salt come back from a key, and its hash is found among those of its prompt."""
    prompt = range(100, 170)
    request = KeyRequest(model, prompt, 32, salt, dtype, world_size, hash_seed)
    keys = DIALECTS[dialect].chunk_keys(request)
    for number, key in enumerate(keys):
        name = read_key(DIALECTS[dialect].value_key(key).decode())
        assert name is not None
        assert (name.dialect, name.model, name.world_size, name.rank) == (
            dialect,
            model,
            world_size,
            number % world_size,
        )
        assert (name.group, name.is_value) == (0, True)
        assert name.dtype == (DTYPE_NAMES[dtype] if dialect == "lmcache" else None)
        assert (name.salt is not None) == (salt is not None)
        if salt is not None:
            assert any(marker in key for marker in salt_markers(salt))
        guard = DIALECTS[dialect].guard_key(key)
        if guard is not None:
            read = read_key(guard.decode())
            assert read is not None and not read.is_value
    first = read_key(DIALECTS[dialect].value_key(keys[0]).decode())
    assert first is not None
    found = first_digests(prompt, (16, 32, 64), {None, hash_seed})
    assert found[first.digest] == Origin(dialect, 32, None if dialect == "lmcache-mp" else hash_seed)


def test_longer_chunks_than_the_prompt_have_no_hash() -> None:
    """A chunk that is not full has no key."""
    assert {origin.chunk_tokens for origin in first_digests(range(40), (16, 32, 64), (None,)).values()} == {16, 32}


def test_object_groups_and_fp8_are_read() -> None:
    """Groups beside the first and dtypes that the bridge does not spell are read all the same."""
    assert read_key(f"org/m@08030803@2@{'ab' * 32}@salt") == KeyName(
        "lmcache-mp", "org/m", 8, 3, 2, "ab" * 32, None, "salt"
    )
    name = read_key("org/m@1@0@-1abc@fp8_e4m3fnkv_bytes")
    assert name is not None and (name.dtype, name.digest) == ("fp8_e4m3fn", "-1abc")


@pytest.mark.parametrize(
    "key", ["", "pdd:index:1", "a@b@c", "m@1@0@xyz@floatkv_bytes", "m@01000100@0@abc", "m@1@0@ab@float"]
)
def test_other_keys_are_not_read(key: str) -> None:
    """What is no key of LMCache is nothing."""
    assert read_key(key) is None


@given(st.text())
def test_any_text_is_read_or_not(text: str) -> None:
    """No name of a key is an error."""
    read_key(text)
