"""Which instances served a conversation's last turn, so that the next one finds its cache."""

from collections import OrderedDict

MOST_SESSIONS = 50_000


class Sessions:
    """The newest sessions of this process, by tenant and the key that the client gave."""

    def __init__(self, most: int = MOST_SESSIONS) -> None:
        self._most = most
        self._kept: OrderedDict[str, frozenset[str]] = OrderedDict()

    def served(self, session: str) -> frozenset[str]:
        """Instances of the session's last turn; none for an unknown one."""
        return self._kept.get(session, frozenset())

    def note(self, session: str, instances: frozenset[str]) -> None:
        """Remember a turn's instances; the oldest session beyond the bound is forgotten."""
        self._kept[session] = instances
        self._kept.move_to_end(session)
        if len(self._kept) > self._most:
            self._kept.popitem(last=False)
