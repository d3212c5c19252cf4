"""Addresses in a request that a server would fetch: images, sounds, files, tools. The gateway itself fetches none.

No name is resolved here, so a name that leads to a private address passes: servers that fetch need a network that does
not let them there.
"""

import ipaddress
import re
import socket
from typing import Any
from urllib.parse import urlsplit

from gateway.errors import bad_field
from gateway.http.body import JsonObject

PARTS = frozenset(
    {
        "audio",
        "audio_url",
        "file",
        "image",
        "image_embeds",
        "image_url",
        "input_audio",
        "input_file",
        "input_image",
        "input_video",
        "video",
        "video_url",
    }
)
"""Types of content parts that are not text."""
KEYS = frozenset({"audio_url", "file_url", "image_url", "server_url", "url", "video_url"})
TEXT_KEYS = frozenset(
    {
        "arguments",
        "content",
        "description",
        "documents",
        "input",
        "instructions",
        "model",
        "name",
        "output",
        "prompt",
        "query",
        "reasoning",
        "refusal",
        "stop",
        "suffix",
        "system",
        "text",
        "text_1",
        "text_2",
        "thinking",
        "title",
    }
)
"""Whose strings people and models read: what begins like an address there is text."""
SCHEMA_KEYS = frozenset({"input_schema", "json_schema", "metadata", "parameters", "schema"})
"""What is below them is nothing that anybody fetches."""
DATA_KEYS = frozenset({"b64_json", "data", "file_data", "signature"})
"""Base64, in which a JPEG begins with a slash."""
_ADDRESS = re.compile(r"\s*([a-z][a-z0-9+.-]*:|[/\\~]|\.\.?[/\\])", re.IGNORECASE)
_WITH_SCHEME = re.compile(r"\s*[a-z][a-z0-9+.-]*:", re.IGNORECASE)
PRIVATE_SUFFIXES = (".arpa", ".internal", ".lan", ".local", ".localdomain", ".localhost", ".svc")
_UNCLEAR = re.compile(r"[\x00-\x20\x7f\\]|[^\x00-\x7f]")
_NAME = re.compile(r"[a-z0-9_]([a-z0-9_-]*[a-z0-9])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9])?)+")
_EMBEDDING = (
    ipaddress.ip_network("64:ff9b::/96"),
    ipaddress.ip_network("64:ff9b:1::/48"),
    ipaddress.ip_network("::/96"),
)


def check_media(value: Any, path: str = "", name: str = "") -> None:
    """Refuse addresses that are not public ones. Raises GatewayError. ``value``: of ``parse_object``, so never deep.

    ``name``: the key that ``value`` stands under. Any string is looked at that begins as an address or a path does,
    whatever its key, but for text.
    """
    if isinstance(value, str):
        if is_address(value, name) and not is_public(value):
            raise bad_field(path or name, "This address may not be asked for.", "forbidden_url")
    elif isinstance(value, dict):
        for key, entry in value.items():
            if key not in SCHEMA_KEYS:
                # The place of a string is that of its object: the address itself is not to be repeated.
                check_media(entry, path if isinstance(entry, str) and path else f"{path}.{key}" if path else key, key)
    elif isinstance(value, list):
        for rank, entry in enumerate(value):
            check_media(entry, f"{path}[{rank}]", name)


def is_address(text: str, name: str) -> bool:
    """Say whether a string under a key is one that a server may take for an address to fetch, or for a path."""
    if name in KEYS:
        return True
    if name in TEXT_KEYS:
        return False
    return (_WITH_SCHEME if name in DATA_KEYS else _ADDRESS).match(text) is not None


def has_media(value: JsonObject) -> bool:
    """Say whether a chat holds anything but text."""
    messages = value.get("messages")
    contents = [entry.get("content") for entry in as_list(messages) if isinstance(entry, dict)]
    parts = [part for content in contents for part in as_list(content)]
    return any(isinstance(part, dict) and part.get("type") in PARTS for part in parts)


def count_media_bytes(value: Any) -> int:
    """Return how much of a body is data of images, sounds and films. ``value``: of ``parse_object``, so never deep."""
    if isinstance(value, str):
        return len(value) if value.startswith("data:") else 0
    if isinstance(value, dict):
        data = value.get("data")
        return (len(data) if isinstance(data, str) else 0) + sum(map(count_media_bytes, value.values()))
    return sum(map(count_media_bytes, value)) if isinstance(value, list) else 0


def as_list(value: Any) -> list[Any]:
    """Return a list, and an empty one for anything else."""
    return value if isinstance(value, list) else []


def is_public(address: str) -> bool:
    """Say whether an address is data, or at a host that everybody can reach."""
    if address[:5].lower() == "data:":
        return True
    if _UNCLEAR.search(address):
        return False
    try:
        parts = urlsplit(address)
        host = (parts.hostname or "").rstrip(".")
    except ValueError:
        return False
    if parts.scheme not in ("http", "https") or "@" in parts.netloc or "%" in parts.netloc:
        return False
    return is_public_host(host)


def is_public_host(host: str) -> bool:
    """Say whether a host in lower case is a public address, or a name that is not known to be private."""
    try:
        address: ipaddress.IPv4Address | ipaddress.IPv6Address = ipaddress.ip_address(host)
    except ValueError:
        try:
            # Also 127.1, 0x7f.1 and 2130706433, which resolvers take.
            address = ipaddress.IPv4Address(socket.inet_aton(host))
        except OSError:
            return _NAME.fullmatch(host) is not None and not host.endswith(PRIVATE_SUFFIXES)
    if isinstance(address, ipaddress.IPv6Address):
        if address.sixtofour or address.teredo or any(address in network for network in _EMBEDDING):
            return False
        address = address.ipv4_mapped or address
    return address.is_global and not address.is_multicast
