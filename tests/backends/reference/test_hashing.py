from backends.reference.hashing import block_hash, external_hash, root_hash, store_salt


def test_hash_depends_on_all_tokens_before() -> None:
    """Equal blocks after different prefixes have different hashes."""
    first = block_hash(root_hash(None), [1, 2])
    other = block_hash(root_hash(None), [1, 3])
    assert block_hash(first, [4, 5]) != block_hash(other, [4, 5])


def test_salt_separates_equal_prompts() -> None:
    """The same tokens under another salt are another block; no salt and an empty one are the same."""
    assert block_hash(root_hash("a"), [1]) != block_hash(root_hash("b"), [1])
    assert root_hash(None) == root_hash("")


def test_hashes_are_the_same_in_every_process() -> None:
    """Pinned: engines that share an index must agree."""
    value = block_hash(root_hash(None), [1, 2, 3, 4])
    assert external_hash(value) == int.from_bytes(value[:8], "big")
    assert 0 <= external_hash(value) < 2**64
    assert store_salt("tenant-a") == "80a707af7dc77ee1228f9127180f3964"
