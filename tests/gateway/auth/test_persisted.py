"""What is kept in Redis and in stores under a secret, as it is spelt: a change here makes what is there of no use."""

from gateway.auth.keys import ApiKey, hash_key
from gateway.auth.secrets import Salts
from gateway.index.hashing import chain_digests, chain_seed
from gateway.redis.client import digest
from gateway.tenancy import name_index

SECRET = b"0123456789abcdef0123"


def test_hashes_of_keys() -> None:
    """A key that was made before opens what it opened."""
    expected = "5ab9524190fb3ab2453c2b0bb6c83ec9a9eb1a8d46f97b984872b5bb8c600896"
    assert hash_key(SECRET, ApiKey("id", "random")) == expected


def test_salts() -> None:
    """A tenant finds the KV that it had, by itself, by its group and by its adapter."""
    salts = Salts(SECRET, frozenset({"lora"}))
    own = "c64159c138f65e292af6ecffb58e769d66e4e5ba37a12db12b147ebd2523f5c7"
    assert salts.of("ada") == salts.of_model(own, "base") == own
    assert salts.of("ada", "group") == "b93fed61b82f843b683e791bc23f51f67bf1119c44646a8097eb596d8f29ada6"
    assert salts.of_model(own, "lora") == "0c9cbdb43ca201311e6b9e04119c551a13ee295ae9a512a1815b20cbb6bebd0a"


def test_names_in_redis() -> None:
    """The index, its block key and a tenant's limits and use are where they were."""
    prefix, key = name_index(SECRET)
    assert (prefix, key.hex()[:16]) == ("pdd:33330a5e", "3455ce4977164d00")
    assert name_index(None) == ("pdd", b"")
    assert digest("ada") == "c6ef43c47f8c23627ee5b9f8f5cb406c"


def test_names_of_blocks() -> None:
    """A prompt's blocks have the names under which gateways noted them."""
    seed = chain_seed("m", "lora", "salt", b"key")
    assert seed.hex() == "2c676597b2af1a370b46aaf1a41ac2a0"
    assert [one.hex() for one in chain_digests(list(range(40)), seed)] == [
        "fd7a73de0689d38cb90f615ff67ca42a",
        "417efc23c451fda3303f8e8a0e74c7a0",
    ]
