from backends.engines.reference.blocks import BlockHash, chain_hashes, external_hash, root_hash, store_salt


def block_hash(parent: BlockHash, token_ids: list[int]) -> BlockHash:
    """Hash of one full block after ``parent``."""
    return next(chain_hashes(parent, token_ids, len(token_ids)))


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


def test_a_chain_is_that_of_its_blocks_and_leaves_out_the_rest() -> None:
    """Hashing many blocks at once gives what hashing them one by one gives; a block that is not full has no hash."""
    root = root_hash(None)
    first = block_hash(root, [1, 2])
    assert list(chain_hashes(root, [1, 2, 3, 4, 5], 2)) == [first, block_hash(first, [3, 4])]
    assert list(chain_hashes(root, [1], 2)) == []
