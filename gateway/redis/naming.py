"""Names of tenants and models as parts of keys in Redis."""

from hashlib import blake2b


def digest(name: str) -> str:
    """Names may hold anything; braces would move keys to other slots of a cluster."""
    return blake2b(name.encode(), digest_size=16).hexdigest()
