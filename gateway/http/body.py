"""A request's body: read within limits, parsed once, and refused with the place of what is wrong."""

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import orjson
from starlette.types import Receive, Scope

from gateway.errors import GatewayError, bad_field
from gateway.http.json_bounds import MOST_DEPTH, MOST_ENTRIES, MOST_VALUES, count_marks, is_deep, is_large

DRAINED_LIMITS = 4
"""A body over the limit is read and thrown away up to so many limits, so that its sender gets to read the answer."""
UNIQUE_KEYS = ("model", "messages", "prompt", "max_tokens", "max_completion_tokens", "stream", "n", "tools")
QUOTED_UNIQUE_KEY = re.compile(rf'"({"|".join(UNIQUE_KEYS)})(?=")'.encode())
ESCAPED_LETTER = re.compile(rb"\\u00[2-7]")
"""An escape that a letter never needs: a key may be written twice in two spellings."""
SHOWN_KEY_CHARACTERS = 100
STEP_BYTES = 64 << 10
FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
JsonObject = dict[str, Any]


class ClientDisconnected(Exception):
    """The client closed the connection."""


class ClientStalled(ClientDisconnected):
    """The client keeps the connection and does not read."""


async def read_body(
    scope: Scope, receive: Receive, limit_bytes: int, timeout_s: float, hold: Callable[[int], None]
) -> bytes:
    """Return the whole body; ``hold`` is told of its bytes as they come, and may refuse more of them.

    Raises GatewayError 413 or 408, ClientDisconnected, and what ``hold`` raises.
    """
    try:
        async with asyncio.timeout(timeout_s):
            return await collect(receive, limit_bytes, declared_bytes(scope), hold)
    except TimeoutError as error:
        raise GatewayError(408, "The request body did not arrive in time.", headers={"connection": "close"}) from error


def declared_bytes(scope: Scope) -> int:
    """Return Content-Length, 0 where there is none."""
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value)
    return 0


async def collect(receive: Receive, limit_bytes: int, declared: int, hold: Callable[[int], None]) -> bytes:
    """Put the body's pieces together, or read past them when they are too many."""
    pieces: list[bytes] = []
    taken = 0
    too_large = declared > limit_bytes
    more = declared <= DRAINED_LIMITS * limit_bytes
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        piece = message.get("body", b"")
        taken += len(piece)
        too_large = too_large or taken > limit_bytes
        if too_large:
            pieces.clear()
        elif piece:
            hold(len(piece))
            pieces.append(piece)
        more = message.get("more_body", False) and taken <= DRAINED_LIMITS * limit_bytes
    if too_large:
        message_text = f"The request body is larger than {limit_bytes} bytes."
        raise GatewayError(413, message_text, headers={"connection": "close"})
    return b"".join(pieces)


def parse_object(body: bytes) -> JsonObject:
    """Return the JSON object. Raises GatewayError for all else: bad text, keys given twice, too much."""
    marks = count_marks(body)
    if is_large(body, marks):
        message = f"The request body holds more than {MOST_VALUES} values, or {MOST_ENTRIES} keys, lists and objects."
        raise bad_field(None, message, "invalid_value")
    try:
        value = load(body)
    except orjson.JSONDecodeError as error:
        raise explain_bad_json(body, error) from error
    if not isinstance(value, dict):
        raise bad_field(None, "The request body must be a JSON object.")
    if marks.entries > MOST_DEPTH and body.count(b"{") + body.count(b"[") > MOST_DEPTH and is_deep(value):
        # Templates and serialisers give up at depths of their own.
        raise bad_field(None, f"The request body is nested more than {MOST_DEPTH} deep.", "invalid_value")
    keys = QUOTED_UNIQUE_KEY.findall(body)
    if len(keys) > len(set(keys)) or ESCAPED_LETTER.search(body) is not None:
        refuse_repeated_keys(body)
    return value


def load(body: bytes, step_bytes: int = STEP_BYTES) -> Any:
    """Return what ``orjson.loads`` does, and raise what it raises.

    The numbers of a long list are made in steps between which other threads may run: a parser lets none in.
    """
    if len(body) <= step_bytes:
        return orjson.loads(body)
    try:
        fields = FIELDS.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return orjson.loads(body)
    return {name: load_field(bytes(raw), step_bytes) for name, raw in fields.items()}


def load_field(raw: bytes, step_bytes: int) -> Any:
    """Return one field's value, of which it is known that it is well formed but for its strings."""
    is_long = len(raw) > step_bytes and raw.startswith(b"[")
    if not is_long or raw.find(b'"') >= 0 or raw.find(b"[", 1) >= 0 or raw.find(b"{") >= 0:
        return orjson.loads(raw)
    values: list[Any] = []
    start, end = 1, raw.rindex(b"]")
    while start < end:
        comma = raw.find(b",", start + step_bytes, end)
        stop = end if comma < 0 else comma
        values += orjson.loads(b"[" + raw[start:stop] + b"]")
        start = stop + 1
    return values


def refuse_repeated_keys(body: bytes) -> None:
    """Refuse an object that says one of its fields twice: two readers could take two different values."""
    keys: list[str] = []

    def remember(pairs: list[tuple[str, Any]]) -> None:
        keys[:] = [key for key, _ in pairs]

    # The outermost object is the last to be complete.
    json.loads(body, object_pairs_hook=remember)
    seen: set[str] = set()
    for key in keys:
        if key in seen:
            shown = key[:SHOWN_KEY_CHARACTERS]
            raise bad_field(shown, f"The field {shown!r} is given more than once.", "duplicate_field")
        seen.add(key)


def explain_bad_json(body: bytes, error: orjson.JSONDecodeError) -> GatewayError:
    """Return the error of an unreadable body; the field is named where only its text is bad."""
    text = body.decode("utf-8", "surrogateescape")
    try:
        place = find_bad_text(json.loads(text, parse_constant=refuse_constant), "")
    except (ValueError, RecursionError):
        return bad_field(None, f"The request body is not valid JSON: line {error.lineno}, column {error.colno}.")
    if place is None:
        return bad_field(None, "The request body is not valid JSON.")
    return bad_field(place or None, f"{place or 'The body'} holds text that is not valid Unicode.", "invalid_unicode")


def refuse_constant(name: str) -> float:
    """NaN and the infinities are no JSON."""
    raise ValueError(name)


def find_bad_text(value: Any, path: str) -> str | None:
    """Return the path of the first string that cannot be written as UTF-8, a key counting as its object."""
    if isinstance(value, str):
        return path if is_bad(value) else None
    entries: list[tuple[str, Any]] = []
    if isinstance(value, Mapping):
        if any(is_bad(key) for key in value):
            return path
        entries = [(f"{path}.{key}" if path else key, entry) for key, entry in value.items()]
    elif isinstance(value, list):
        entries = [(f"{path}[{rank}]", entry) for rank, entry in enumerate(value)]
    for place, entry in entries:
        if (found := find_bad_text(entry, place)) is not None:
            return found
    return None


def is_bad(text: str) -> bool:
    """Say whether a string holds lone surrogates, which also stand for bytes that are no UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False
