"""Who is at the other end, when proxies stand between: only proxies that are named are believed."""

import ipaddress
from collections.abc import Sequence

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network

FORWARDED_FOR = b"x-forwarded-for"


def find_client(peer: str, headers: Sequence[tuple[bytes, bytes]], trusted: Sequence[IpNetwork]) -> str:
    """Return the address that a request comes from: the right-most one in ``X-Forwarded-For`` that is no trusted proxy.

    Whatever stands left of that, and the whole header where the peer itself is not trusted, anybody can write.
    """
    last = read_address(peer)
    if last is None or not is_within(last, trusted):
        return peer
    hops = b",".join(value for name, value in headers if name == FORWARDED_FOR).decode("latin-1").split(",")
    for hop in reversed(hops):
        address = read_address(hop.strip())
        if address is None:
            break
        last = address
        if not is_within(address, trusted):
            break
    return str(last)


def read_address(text: str) -> IpAddress | None:
    """Read an address, which may have a port; None: it is none. IPv4 in IPv6's clothes is IPv4."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def is_within(address: IpAddress, networks: Sequence[IpNetwork]) -> bool:
    """Say whether an address is in one of the networks."""
    return any(address in network for network in networks)


def name_neighbourhood(peer: str) -> str:
    """Return what a peer's failures are counted by: its address, or with IPv6 its /64, which is one customer's."""
    address = read_address(peer)
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.IPv6Network((address, 64), strict=False))
    return str(address) if address is not None else peer


def is_loopback(host: str) -> bool:
    """Say whether only this machine can connect to an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
