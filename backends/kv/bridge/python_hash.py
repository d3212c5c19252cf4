"""``hash()`` of a text as a Python process with PYTHONHASHSEED computes it, whatever this process's own seed is.

CPython 3.11 and later: SipHash-1-3, with a key that a linear congruential generator draws from the seed.
"""

import struct

_WORD = (1 << 64) - 1
_ROTATIONS = ((0, 1, 13), (2, 3, 16), (0, 3, 21), (2, 1, 17))
"""The four additions of a round: to which word, of which, and how far that one is turned then."""


def hash_text(text: str, seed: int) -> int:
    """Return what ``hash(text)`` is under ``PYTHONHASHSEED=seed``. ``text`` is ASCII and not empty."""
    data = text.encode("ascii")
    first, second = struct.unpack("<2Q", _draw_key(seed))
    state = [
        first ^ 0x736F6D6570736575,
        second ^ 0x646F72616E646F6D,
        first ^ 0x6C7967656E657261,
        second ^ 0x7465646279746573,
    ]
    whole = len(data) // 8 * 8
    last = int.from_bytes(data[whole:], "little") | (len(data) & 0xFF) << 56
    for word in (*struct.unpack(f"<{whole // 8}Q", data[:whole]), last):
        state[3] ^= word
        _mix(state)
        state[0] ^= word
    state[2] ^= 0xFF
    for _ in range(3):
        _mix(state)
    value = state[0] ^ state[1] ^ state[2] ^ state[3]
    value -= (value >> 63) << 64
    return -2 if value == -1 else value  # -1 means an error in CPython


def _draw_key(seed: int) -> bytes:
    if seed == 0:
        return bytes(16)
    key = bytearray()
    for _ in range(16):
        seed = (seed * 214013 + 2531011) & 0xFFFFFFFF
        key.append(seed >> 16 & 0xFF)
    return bytes(key)


def _mix(state: list[int]) -> None:
    """One SipHash round, in place."""
    for number, (target, source, turn) in enumerate(_ROTATIONS):
        state[target] = (state[target] + state[source]) & _WORD
        state[source] = _turn(state[source], turn) ^ state[target]
        if number in (0, 3):
            state[target] = _turn(state[target], 32)


def _turn(word: int, bits: int) -> int:
    return (word << bits | word >> 64 - bits) & _WORD
