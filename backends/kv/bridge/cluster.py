"""What servers of a Redis or Valkey Cluster say of where keys are."""

from collections.abc import Iterator
from typing import NamedTuple

from backends.kv.bridge.resp import ConnectionLost, StoreAddress, StoreConnection

_NODES_LIMIT_BYTES = 1 << 20


class Hint(NamedTuple):
    """Where a cluster's server says that a key is. ``is_asking``: for this command only, while its slot moves."""

    host: str
    port: int
    is_asking: bool


def read_hint(error: str) -> Hint | None:
    """Read ``MOVED SLOT HOST:PORT`` or ``ASK SLOT HOST:PORT``; None: the error is another. ``host`` may be empty."""
    words = error.split()
    if len(words) != 3 or words[0] not in ("MOVED", "ASK"):
        return None
    host, _, port = words[2].rpartition(":")
    return Hint(host.strip("[]"), int(port), words[0] == "ASK") if port.isdigit() else None


def read_nodes(text: str, asked_host: str) -> Iterator[tuple[range, tuple[str, int]]]:
    """Read what ``CLUSTER NODES`` tells: ranges of slots, and where their master is. Raises ValueError.

    A server that does not know its own address is where it was asked.
    """
    for line in text.splitlines():
        fields = line.split()
        if len(fields) < 8:
            raise ValueError("the cluster's list of servers cannot be read")
        host, _, port = fields[1].partition(",")[0].partition("@")[0].rpartition(":")
        for slots in fields[8:]:
            if not slots.startswith("["):  # else one that is on its way
                first, _, last = slots.partition("-")
                yield range(int(first), int(last or first) + 1), (host.strip("[]") or asked_host, int(port))


async def ask_nodes(address: StoreAddress, silence_s: float) -> str:
    connection = await StoreConnection.open(address, silence_s=silence_s)
    try:
        reply = await connection.send(b"CLUSTER", b"NODES", limit_bytes=_NODES_LIMIT_BYTES)
    finally:
        connection.abort()
    if not isinstance(reply, bytes | bytearray):
        raise ConnectionLost(f"{address} tells no list of servers")
    return reply.decode(errors="replace")
