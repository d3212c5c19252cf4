"""Looks into a store for keys that have something in their name: whoever cannot foresee a key can find it so."""

import asyncio
from collections.abc import Sequence

import redis.asyncio
from redis.exceptions import RedisError

from backends.kv.bridge.resp import StoreAddress
from backends.kv.bridge.types import FoundKeys
from backends.types import FoundKey

SCAN_COUNT = 2000
"""Keys that the store looks at in one turn, in which nobody else is answered: a millisecond or two."""
LONGEST_LOOK_S = 10.0
MOST_FOUND = 4096
MOST_PASSES = 2
_GLOB = frozenset("*?[]^\\")


class CannotLook(Exception):
    """The store did not answer, or refuses to list its keys; the message says why."""


async def find_keys(addresses: Sequence[StoreAddress], markers: Sequence[str], silence_s: float) -> FoundKeys:
    """Find the keys of a store's servers that hold one of ``markers``, with their values' sizes. Raises CannotLook.

    A marker or two are looked for by the store itself, one after the other; of more the names of all keys come here.
    """
    found = await asyncio.gather(*(_find_keys(address, markers, silence_s) for address in addresses))
    keys = [key for one in found for key in one.keys]
    return FoundKeys(keys[:MOST_FOUND], len(keys) <= MOST_FOUND and all(one.is_whole for one in found))


async def _find_keys(address: StoreAddress, markers: Sequence[str], silence_s: float) -> FoundKeys:
    client = redis.asyncio.Redis(
        host=address.host,
        port=address.port,
        db=address.database,
        username=address.username,
        password=address.password,
        ssl=address.tls,
        ssl_ca_certs=address.files.ca_file,
        ssl_certfile=address.files.cert_file,
        ssl_keyfile=address.files.key_file,
        socket_timeout=silence_s,
        socket_connect_timeout=silence_s,
    )
    try:
        async with asyncio.timeout(LONGEST_LOOK_S), client:
            names, is_whole = await _scan(client, markers)
            pipeline = client.pipeline(transaction=False)
            for name in names:
                pipeline.strlen(name)
            sizes = await pipeline.execute() if names else []
    except TimeoutError:
        raise CannotLook(f"the store {address} could not be looked through in {LONGEST_LOOK_S:g} s") from None
    except (RedisError, OSError) as error:
        raise CannotLook(f"the store {address} cannot be looked through: {error}") from None
    found = [FoundKey(name.decode(errors="replace"), size) for name, size in zip(names, sizes, strict=True) if size > 0]
    return FoundKeys(found, is_whole)


async def _scan(client: redis.asyncio.Redis, markers: Sequence[str]) -> tuple[list[bytes], bool]:
    patterns = [f"*{_escape(marker)}*" for marker in markers] if len(markers) <= MOST_PASSES else [None]
    wanted = [marker.encode() for marker in markers]
    found: set[bytes] = set()
    for pattern in patterns:
        async for name in client.scan_iter(match=pattern, count=SCAN_COUNT, _type="string"):
            if pattern is not None or any(marker in name for marker in wanted):
                found.add(name)
                if len(found) >= MOST_FOUND:
                    return sorted(found), False
    return sorted(found), True


def _escape(marker: str) -> str:
    return "".join(f"\\{letter}" if letter in _GLOB else letter for letter in marker)
