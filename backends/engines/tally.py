"""Counts the ids of one leg, so that none is lost without being noticed."""

from backends.errors import EngineBroken, IdsMissing


class IdTally:
    """``tokens``: how many ids came so far."""

    def __init__(self) -> None:
        self.tokens = 0
        self._has_finish = False

    def add(self, count: int) -> None:
        """So many ids came. Raises EngineBroken after the finish_reason."""
        if count and self._has_finish:
            raise EngineBroken("token ids after the finish_reason")
        self.tokens += count

    def compare(self, made_tokens: int) -> None:
        """The engine says how many it made. Raises IdsMissing."""
        if made_tokens > self.tokens:
            raise IdsMissing(f"{made_tokens} tokens were made, ids of {self.tokens} came")

    def finish(self) -> None:
        """The finish_reason came."""
        self._has_finish = True

    def end(self) -> None:
        """[DONE] came. Raises EngineBroken without a finish_reason, IdsMissing without any id."""
        if not self._has_finish:
            raise EngineBroken("[DONE] without a finish_reason")
        if not self.tokens:
            raise IdsMissing("the answer ended without any token id")
