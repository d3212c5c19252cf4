"""Which instances served a conversation's last turn, so that the next one finds its cache."""

import hashlib
from collections import OrderedDict

MOST_SESSIONS = 50_000


class Sessions:
    """The newest sessions of this process, by tenant and the key that the client gave, of which a hash is kept."""

    def __init__(self, most: int = MOST_SESSIONS) -> None:
        self._most = most
        self._kept: OrderedDict[bytes, frozenset[str]] = OrderedDict()

    def served(self, session: str) -> frozenset[str]:
        """Instances of the session's last turn; none for an unknown one."""
        return self._kept.get(shorten(session), frozenset())

    def note(self, session: str, instances: frozenset[str]) -> None:
        """Remember a turn's instances; the oldest session beyond the bound is forgotten."""
        name = shorten(session)
        self._kept[name] = instances
        self._kept.move_to_end(name)
        if len(self._kept) > self._most:
            self._kept.popitem(last=False)


def shorten(session: str) -> bytes:
    """Return what stands for a session: clients may name theirs as long as they like."""
    return hashlib.blake2b(session.encode(), digest_size=16).digest()
